#include "engine/watch.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "base/thread_setup.h"
#include "base/try.h"

namespace farandole {
namespace {

// The epoll data of stop_event_. The epoll data of a pidfd is the rank of its process.
constexpr std::uint32_t kStopEvent = UINT32_MAX;

}  // namespace

Watch::Watch(Doorbells& doorbells, std::vector<Process> processes, const Log& log)
    : doorbells_(doorbells), log_(log), processes_(std::move(processes)) {}

Watch::~Watch() { stop(); }

Status Watch::start() {
  stop_event_ = Descriptor::above_standard_streams(::eventfd(0, EFD_CLOEXEC));
  epoll_ = Descriptor::above_standard_streams(::epoll_create1(EPOLL_CLOEXEC));
  if (!stop_event_.valid() || !epoll_.valid())
    return Status::stop(format_text("cannot make an {} ({}); raise `ulimit -n`",
                                    stop_event_.valid() ? "epoll" : "eventfd",
                                    std::strerror(errno)));
  FARANDOLE_TRY(watch_descriptor(stop_event_.get(), kStopEvent));
  for (const Process& process : processes_)
    FARANDOLE_TRY(watch_descriptor(process.descriptor, static_cast<std::uint32_t>(process.rank)));
  try {
    thread_ = std::thread(&Watch::run, this);
  } catch (const std::system_error& error) {
    return Status::stop(format_text(
        "cannot start the watch thread ({}); raise `ulimit -u` or the pids limit of the container, "
        "or, since a thread needs room for its stack, `ulimit -v`",
        error.what()));
  }
  return {};
}

Status Watch::watch_descriptor(int descriptor, std::uint32_t data) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = data;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) == 0) return {};
  return Status::stop(
      format_text("cannot watch the other workers (epoll_ctl: {}); the limit is in "
                  "/proc/sys/fs/epoll/max_user_watches",
                  std::strerror(errno)));
}

void Watch::stop() {
  if (!thread_.joinable()) return;
  const std::uint64_t increment = 1;
  while (::write(stop_event_.get(), &increment, sizeof(increment)) != sizeof(increment))
    CHECK(errno == EINTR, "an eventfd can be incremented");
  thread_.join();
  stop_event_.reset();
  epoll_.reset();
}

// This thread must not allocate memory, because it could not report a failure. It uses epoll,
// because poll() fails with more descriptors than RLIMIT_NOFILE allows, and the user's program may
// lower this limit.
void Watch::run() {
  set_up_own_thread("farandole-watch");
  for (;;) {
    epoll_event event{};
    const int count = ::epoll_wait(epoll_.get(), &event, 1, -1);
    if (count != 1) {
      CHECK(errno == EINTR, "epoll_wait fails for no other reason on a valid descriptor");
      continue;
    }
    if (event.data.u32 == kStopEvent) return;
    handle_ended_process(static_cast<int>(event.data.u32));
  }
}

void Watch::handle_ended_process(int rank) {
  for (const Process& process : processes_)
    if (process.rank == rank) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, process.descriptor, nullptr);
  if (doorbells_.has_left(rank)) return;  // after a leave, the end of the process is normal
  doorbells_.close(rank);
  try {
    log_(Level::kInfo, format_text("rank {} has died", rank));
  } catch (const std::bad_alloc&) {
    return;  // only the log line is lost
  }
}

}  // namespace farandole
