#include "driver/relayed_launcher.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/descriptor_limit.h"
#include "base/format.h"
#include "base/poller.h"
#include "base/process_end.h"
#include "base/try.h"
#include "driver/caller_streams.h"
#include "driver/stream_relay.h"
#include "launcher/signal_setup.h"
#include "remote/pipe.h"
#include "workers/worker_process.h"

namespace farandole {
namespace {

struct DescriptorPair {
  Descriptor ours;
  Descriptor theirs;
};

Status descriptor_error(const char* call) {
  return Status::stop(format_text("{}: {} ({})", call, std::strerror(errno), descriptor_advice()));
}

Result<DescriptorPair> make_socket_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return descriptor_error("socketpair");
  return DescriptorPair{Descriptor(ends[0]), Descriptor(ends[1])};
}

Result<Descriptor> duplicate_descriptor(int descriptor) {
  Descriptor copy(::fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!copy.valid()) return descriptor_error("fcntl");
  return copy;
}

// Makes and keeps all descriptors between us and the launcher.
class LauncherDescriptors {
 public:
  Status open(const RelayedParts& parts, int workers) {
    FARANDOLE_TRY_ASSIGN(Pipe input, make_pipe());
    FARANDOLE_TRY_ASSIGN(Pipe output, make_pipe());
    FARANDOLE_TRY_ASSIGN(Pipe report, make_pipe());
    caller_.report = report.write_end.get();
    launcher_input_ = std::move(input.read_end);
    launcher_output_ = std::move(output.write_end);
    launcher_ends_.push_back(std::move(report.write_end));
    our_streams_.push_back({.id = kInputStream, .sink = std::move(input.write_end)});
    our_streams_.push_back({.id = kOutputStream, .source = std::move(output.read_end)});
    our_streams_.push_back(
        {.id = kReportStream, .source = std::move(report.read_end), .follows_others = true});
    for (int worker = 0; worker < workers; ++worker) {
      if (parts.has_channels) FARANDOLE_TRY(add_channel(worker));
      for (const std::uint32_t stream : {0U, 1U}) {
        if (parts.has_streams)
          FARANDOLE_TRY(add_stream(output_stream(worker, stream), caller_.streams));
        if (parts.has_copies)
          FARANDOLE_TRY(add_stream(copy_stream(worker, stream), caller_.copies));
      }
    }
    return {};
  }

  std::vector<RelayStream> take_our_streams() {
    launcher_ends_.clear();
    launcher_input_.reset();
    launcher_output_.reset();
    return std::move(our_streams_);
  }
  // Call it in the child. Closes our ends, and returns those of the launcher.
  const CallerDescriptors& keep_launcher_ends() {
    our_streams_.clear();
    ::dup2(launcher_input_.get(), STDIN_FILENO);
    ::dup2(launcher_output_.get(), STDOUT_FILENO);
    launcher_input_.reset();
    launcher_output_.reset();
    return caller_;
  }

 private:
  Status add_channel(int worker) {
    FARANDOLE_TRY_ASSIGN(DescriptorPair channel, make_socket_pair());
    FARANDOLE_TRY_ASSIGN(Descriptor source, duplicate_descriptor(channel.ours.get()));
    our_streams_.push_back({.id = channel_stream(worker),
                            .source = std::move(source),
                            .sink = std::move(channel.ours)});
    caller_.channels.push_back(channel.theirs.get());
    launcher_ends_.push_back(std::move(channel.theirs));
    return {};
  }
  Status add_stream(std::uint32_t id, std::vector<int>& descriptors) {
    FARANDOLE_TRY_ASSIGN(Pipe pipe, make_pipe());
    our_streams_.push_back({.id = id, .source = std::move(pipe.read_end)});
    descriptors.push_back(pipe.write_end.get());
    launcher_ends_.push_back(std::move(pipe.write_end));
    return {};
  }

  Descriptor launcher_input_;  // the launcher's standard input
  Descriptor launcher_output_;
  std::vector<Descriptor> launcher_ends_;
  std::vector<RelayStream> our_streams_;
  CallerDescriptors caller_;
};

int report_error(const Status& why) {
  std::fprintf(stderr, "farandole: %s\n", why.message().c_str());
  return 1;
}

Result<StreamRelay> relay_to_driver(std::vector<RelayStream> streams) {
  FARANDOLE_TRY_ASSIGN(Descriptor from_driver, duplicate_descriptor(STDIN_FILENO));
  FARANDOLE_TRY_ASSIGN(Descriptor to_driver, duplicate_descriptor(STDOUT_FILENO));
  return StreamRelay::create(std::move(from_driver), std::move(to_driver), std::move(streams));
}

// Passes signals on to the launcher, which forwards them to the workers and gives the workers time
// to end.
void pass_on_signals(const Descriptor& signals, pid_t launcher) {
  signalfd_siginfo signal_info{};
  while (::read(signals.get(), &signal_info, sizeof(signal_info)) == sizeof(signal_info))
    if (signal_info.ssi_signo != SIGCHLD) ::kill(launcher, static_cast<int>(signal_info.ssi_signo));
}

// Relays until the launcher has ended and the driver has got everything.
Result<ProcessEnd> relay_until_end(StreamRelay& relay, pid_t launcher, const Descriptor& signals) {
  const Descriptor pidfd(static_cast<int>(::syscall(SYS_pidfd_open, launcher, 0)));
  FARANDOLE_TRY_ASSIGN(Poller poller, Poller::create());
  if (!pidfd.valid() || !poller.add(pidfd.get(), Poller::Interest::kReading, 0) ||
      !poller.add(relay.descriptor(), Poller::Interest::kReading, 1) ||
      !poller.add(signals.get(), Poller::Interest::kReading, 2))
    return descriptor_error("cannot watch the launcher");
  std::optional<ProcessEnd> end;
  while (!end || !(relay.has_sent_everything() || relay.peer_is_gone())) {
    poller.wait(std::nullopt);
    relay.serve();
    if (end) continue;
    pass_on_signals(signals, launcher);
    end = reap(launcher);
    if (!end) continue;
    poller.remove(pidfd.get());
    poller.remove(signals.get());
    relay.end_sources();
  }
  return *end;
}

}  // namespace

int run_relayed_launcher(const RelayedParts& parts, int workers,
                         const std::function<int(const CallerDescriptors&)>& launch) {
  const OriginalProcessState state = save_and_adjust_state();
  LauncherDescriptors ends;
  if (const Status status = ends.open(parts, workers); !status.ok()) return report_error(status);
  const sigset_t handled = handled_signals();
  block_signals(handled);
  const pid_t launcher = ::fork();
  if (launcher < 0) return report_error(descriptor_error("cannot start the launcher: fork"));
  if (launcher == 0) {
    ::setrlimit(RLIMIT_NOFILE, &state.descriptor_limit);
    ::sigprocmask(SIG_SETMASK, &state.signal_mask, nullptr);
    ::_exit(launch(ends.keep_launcher_ends()));
  }
  // If we fail, our ends of the descriptors close. The launcher then ends the job, because its
  // driver seems to be gone.
  auto relay = relay_to_driver(ends.take_our_streams());
  if (!relay.ok()) return report_error(relay.status());
  const Descriptor signals(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.valid()) return report_error(descriptor_error("signalfd"));
  const auto end = relay_until_end(*relay, launcher, signals);
  if (!end.ok()) return report_error(end.status());
  if (!relay->failure().ok()) return report_error(relay->failure());
  return end->exit_code();
}

}  // namespace farandole
