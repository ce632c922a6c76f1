#include "formation/launcher_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "base/descriptor.h"
#include "base/descriptor_limit.h"
#include "base/format.h"
#include "base/guarded.h"
#include "base/poller.h"
#include "base/thread_setup.h"
#include "base/try.h"
#include "rendezvous/launcher_notice.h"
#include "transport/unix_socket.h"

namespace farandole {
namespace {

constexpr const char* kLostText =
    "the launcher of this job (`farandole run`) has ended without ending its workers";

// Kills this worker and the processes that it has started. All of these processes are in the
// process group that the launcher has made for the worker.
[[noreturn]] void kill_own_group() {
  ::kill(0, SIGKILL);
  ::_exit(1);  // reached only if the signal has not ended this process
}

// Reads some bytes and drops them. If the stream has ended, closes it.
void drop_output(Descriptor& stream) {
  std::array<char, 16384> bytes{};
  const ssize_t count = ::read(stream.get(), bytes.data(), bytes.size());
  if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN)) stream.reset();
}

}  // namespace

struct LauncherWatch::State {
  State(UnixSocket given_socket, Descriptor given_stop_event)
      : socket(std::move(given_socket)), stop(std::move(given_stop_event)) {}

  // Reads and handles the next notice. Returns false if there is none yet.
  bool handle_next_notice();
  void handle_lost_launcher();
  void announce(const std::string& text, Duration limit);

  const UnixSocket socket;
  const Descriptor stop;  // an eventfd
  // start() uses these two members before the thread starts; then only the thread uses them.
  std::array<Descriptor, 2> output;  // read ends of our output pipes; may be invalid
  bool is_lost = false;
  std::atomic<bool> may_outlive_launcher = false;
  std::atomic<bool> end_announced = false;  // readable without the lock
  std::optional<TimePoint> kill_time;       // set before end_announced
  Guarded<std::string> end_reason;
  struct Members {
    std::int64_t epoch = 0;
    std::function<void(int rank)> handler;
    std::int64_t lost_epoch = 0;  // the epoch of the last lost member
    int lost_rank = 0;

    void handle_loss() const {
      if (handler && lost_epoch == epoch) handler(lost_rank);
    }
  };
  Guarded<Members> members;
};

bool LauncherWatch::State::handle_next_notice() {
  auto message = socket.try_receive();
  if (message.status().code() == StatusCode::kRetry) return false;
  const auto notice = message.ok() ? LauncherNotice::decode(message->bytes) : std::nullopt;
  if (!notice) {
    handle_lost_launcher();
  } else if (notice->kind == LauncherNotice::Kind::kOutlive) {
    may_outlive_launcher = true;
    const std::size_t count = std::min(output.size(), message->descriptors.size());
    for (std::size_t i = 0; i < count; ++i) output.at(i) = std::move(message->descriptors[i]);
  } else if (notice->kind == LauncherNotice::Kind::kMemberLost) {
    auto locked_members = members.lock();
    locked_members->lost_epoch = notice->epoch;
    locked_members->lost_rank = notice->rank;
    locked_members->handle_loss();
  } else {
    announce(notice->why, notice->limit);
  }
  return true;
}

// If the launcher has not sent kOutlive, the job goes on without this launcher and its workers. So
// this worker must end immediately.
void LauncherWatch::State::handle_lost_launcher() {
  if (!may_outlive_launcher && !end_announced) kill_own_group();
  is_lost = true;
  announce(kLostText, kEndLimit);
}

// Only the first announcement counts.
void LauncherWatch::State::announce(const std::string& text, Duration limit) {
  if (end_announced) return;
  kill_time = std::chrono::steady_clock::now() + limit;
  *end_reason.lock() = text;
  end_announced = true;
  end_reason.notify_all();
}

Result<std::unique_ptr<LauncherWatch>> LauncherWatch::start(int descriptor) {
  if (const Status check_status = UnixSocket::check(descriptor); !check_status.ok())
    return Status::fix_call(format_text(
        "FARANDOLE_LAUNCHER_DESCRIPTOR={} should be this worker's socket to its launcher, but {}. "
        "A wrapper between `farandole run` and this program may close inherited descriptors "
        "(Python's subprocess does unless close_fds=False)",
        descriptor, check_status.message()));
  Descriptor duplicate(::fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  Descriptor stop = Descriptor::above_standard_streams(::eventfd(0, EFD_CLOEXEC));
  if (!duplicate.valid() || !stop.valid() || ::fcntl(descriptor, F_SETFD, FD_CLOEXEC) != 0)
    return Status::stop("cannot watch the launcher: " + descriptor_advice());
  FARANDOLE_TRY_ASSIGN(auto socket, UnixSocket::adopt(std::move(duplicate)));
  auto state = std::make_shared<State>(std::move(socket), std::move(stop));
  while (state->handle_next_notice() && !state->is_lost) {
  }
  if (state->may_outlive_launcher) ::prctl(PR_SET_PDEATHSIG, 0);
  std::unique_ptr<LauncherWatch> watch(new LauncherWatch(state));
  watch->process_ = ::getpid();
  try {
    watch->thread_ = std::thread([state] { run(state); });
  } catch (const std::system_error& error) {
    return Status::stop(format_text(
        "cannot start the thread that watches the launcher ({}); raise `ulimit -u` or the pids "
        "limit of the container, or, since a thread needs room for its stack, `ulimit -v`",
        error.what()));
  }
  return watch;
}

LauncherWatch::~LauncherWatch() {
  if (!thread_.joinable()) return;
  if (::getpid() != process_ || state_->end_announced) {
    thread_.detach();
    return;
  }
  const std::uint64_t increment = 1;
  (void)!::write(state_->stop.get(), &increment, sizeof(increment));
  thread_.join();
  if (state_->may_outlive_launcher) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
}

void LauncherWatch::watch_members(std::int64_t epoch, std::function<void(int rank)> handler) {
  auto members = state_->members.lock();
  members->epoch = epoch;
  members->handler = std::move(handler);
  members->handle_loss();
}

std::string LauncherWatch::announced_end(TimePoint deadline) {
  if (!state_->end_announced && deadline == TimePoint()) return {};
  auto end_reason = state_->end_reason.lock();
  end_reason.wait_until(deadline, [](const std::string& text) { return !text.empty(); });
  return *end_reason;
}

void LauncherWatch::run(const std::shared_ptr<State>& state) {
  set_up_own_thread("farandole-lost");
  auto& [output, error] = state->output;
  for (;;) {
    const bool is_lost = state->is_lost;
    std::array<pollfd, 4> entries{{{state->stop.get(), POLLIN, 0},
                                   {is_lost ? -1 : state->socket.descriptor().get(), POLLIN, 0},
                                   {is_lost ? output.get() : -1, POLLIN, 0},
                                   {is_lost ? error.get() : -1, POLLIN, 0}}};
    ::poll(entries.data(), entries.size(), poll_timeout_ms(state->kill_time));
    if (entries[0].revents != 0) return;
    if (entries[1].revents != 0) state->handle_next_notice();
    if (entries[2].revents != 0) drop_output(output);
    if (entries[3].revents != 0) drop_output(error);
    if (state->kill_time && std::chrono::steady_clock::now() >= *state->kill_time) kill_own_group();
  }
}

}  // namespace farandole
