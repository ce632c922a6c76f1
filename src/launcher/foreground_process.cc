#include "launcher/foreground_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/poller.h"
#include "base/process_end.h"
#include "jobs/job_sheet.h"
#include "launcher/agent.h"
#include "launcher/signal_setup.h"
#include "output/colors.h"
#include "rendezvous/launcher_notice.h"
#include "supervision/supervision.h"
#include "workers/process_tree.h"
#include "workers/worker_process.h"

namespace farandole {
namespace {

void print_error(const std::string& text) {
  std::fprintf(stderr, "%s\n", red_on_terminal(STDERR_FILENO, "farandole: " + text).c_str());
}

void print_signalfd_error() {
  print_error(std::string("cannot receive signals: signalfd: ") + std::strerror(errno) +
              " (look at `ulimit -n`)");
}

// After kEndLimit, the agent kills the workers that are left. If the agent itself has not ended
// after this longer time, this process ends everything.
constexpr auto kAgentEndTimeout = kEndLimit + std::chrono::milliseconds(500);

// Passes on the signals that the driver sends. Returns false if the driver is gone.
bool forward_driver_signals(pid_t agent) {
  std::array<char, 64> bytes{};
  const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
  if (count <= 0) return false;
  for (const char signal : std::string_view(bytes.data(), static_cast<std::size_t>(count)))
    ::kill(agent, signal);
  return true;
}

Descriptor open_pidfd(pid_t pid) {
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

// Whether the signal asks the job to end.
bool is_end_request(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

// The connection to the driver, if there is a driver.
struct DriverConnection {
  bool is_connected = false;
  // In an elastic job: a pipe by which the agent learns that the driver is lost. If the pipe is
  // invalid, the agent is killed instead.
  Descriptor loss_pipe{};
};

// Forwards signals until the agent has ended. The agent is in its own process group, so that a
// Ctrl-C reaches the agent only once, through this process. `parent_pidfd` is for another process,
// or invalid; if that process ends, the agent gets SIGTERM.
ProcessEnd forward_signals(pid_t agent, const Descriptor& signals, DriverConnection& driver,
                           Descriptor parent_pidfd) {
  std::optional<TimePoint> kill_at;
  for (;;) {
    // poll() ignores an entry with descriptor −1.
    std::array<pollfd, 3> poll_entries{{{signals.get(), POLLIN, 0},
                                        {driver.is_connected ? STDIN_FILENO : -1, POLLIN, 0},
                                        {parent_pidfd.get(), POLLIN, 0}}};
    ::poll(poll_entries.data(), poll_entries.size(), poll_timeout_ms(kill_at));
    if (kill_at && std::chrono::steady_clock::now() >= *kill_at) {
      kill_at.reset();
      ::kill(agent, SIGKILL);
    }
    if (poll_entries[2].revents != 0) {
      parent_pidfd.reset();
      print_error("the process that has started this launcher has ended; the job ends, too");
      ::kill(agent, SIGTERM);
    }
    if (driver.is_connected && poll_entries[1].revents != 0) {
      driver.is_connected = forward_driver_signals(agent);
      const bool agent_is_told =
          !driver.is_connected && ::write(driver.loss_pipe.get(), "", 1) == 1;
      if (agent_is_told) kill_at = std::chrono::steady_clock::now() + kAgentEndTimeout;
      if (!driver.is_connected && !agent_is_told) ::kill(agent, SIGKILL);
    }
    signalfd_siginfo signal_info{};
    if (poll_entries[0].revents != 0 &&
        ::read(signals.get(), &signal_info, sizeof(signal_info)) == sizeof(signal_info)) {
      const int signal = static_cast<int>(signal_info.ssi_signo);
      if (signal != SIGCHLD) ::kill(agent, signal);
      if (signal == SIGTSTP) stop_after_ctrl_z();
    }
    if (const auto end = reap(agent)) return *end;
  }
}

// Workers of an elastic job outlive the agent: if the agent is killed, the workers finish their
// step, save their state and end. This function waits until all workers have ended, until
// kAgentEndTimeout has passed, or until a signal asks the job to end.
void wait_for_workers(const Descriptor& signals, const std::string& agent_loss) {
  const TimePoint deadline = std::chrono::steady_clock::now() + kAgentEndTimeout;
  pollfd error_stream{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&error_stream, 1, 0) == 1)  // only if stderr has room, so that we never block
    print_error(agent_loss + "; its workers end after their next commit");
  signal_descendants(SIGCONT);  // a stopped worker must run to end
  for (;;) {
    reap_children();
    if (!has_descendants() || std::chrono::steady_clock::now() >= deadline) return;
    pollfd poll_entry{signals.get(), POLLIN, 0};
    ::poll(&poll_entry, 1, poll_timeout_ms(deadline));
    signalfd_siginfo signal_info{};
    if (poll_entry.revents != 0 &&
        ::read(signals.get(), &signal_info, sizeof(signal_info)) == sizeof(signal_info) &&
        is_end_request(static_cast<int>(signal_info.ssi_signo)))
      return;
  }
}

// If the driver is on this host, it is our parent, and the kernel would kill us when the driver
// ends. This function prevents that kill, because we notice the end of the driver by the end of our
// standard input. Then the function makes the pipe by which the agent learns of the driver's end,
// and returns the end of the pipe that the agent reads. If the pipe cannot be made, the agent is
// killed when the driver is lost.
Descriptor make_driver_loss_pipe(DriverConnection& driver) {
  ::prctl(PR_SET_PDEATHSIG, 0);
  std::array<int, 2> ends{-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return {};
  driver.loss_pipe = Descriptor(ends[1]);
  return Descriptor(ends[0]);
}

std::string describe_agent_loss(const JobOptions& options, pid_t agent, const ProcessEnd& end) {
  const std::string host = options.has_driver ? options.nodes->host + ", " : "";
  return "the launcher's agent (" + host + "pid " + std::to_string(agent) +
         ") was killed by signal " + std::to_string(end.signal) + " (" + signal_name(end.signal) +
         ")";
}

// Runs in the child process. Returns the exit code.
int run_as_agent(const JobOptions& options, const OriginalProcessState& state,
                 const Descriptor& foreground_pidfd, const Descriptor& driver_loss_pipe,
                 const sigset_t& handled) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_NAME, kAgentName);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  // The agent needs its own signalfd: unlike the foreground process, it must never block in a read.
  const Descriptor signals(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (signals.valid())
    return run_agent({options, state, foreground_pidfd, signals, driver_loss_pipe.get()});
  print_signalfd_error();
  return 1;
}

}  // namespace

int run_job(const JobOptions& options) {
  const char* path = std::getenv("PATH");
  const auto problem = options.workers > 0
                           ? check_program(options.command.front(), path != nullptr ? path : "")
                           : std::nullopt;
  if (problem) {
    const bool names_host = options.has_driver && options.nodes;
    print_error(names_host ? options.nodes->host + ": " + problem->message : problem->message);
    return problem->exit_code;
  }
  const OriginalProcessState state = save_and_adjust_state();
  const sigset_t handled = handled_signals();
  block_signals(handled);
  const Descriptor foreground_pidfd = open_pidfd(::getpid());
  if (!foreground_pidfd.valid() || ::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    print_error(std::string("this kernel is too old (Linux 5.3 is needed): ") +
                std::strerror(errno));
    return 1;
  }
  const Descriptor signals(::signalfd(-1, &handled, SFD_CLOEXEC));
  if (!signals.valid()) {
    print_signalfd_error();
    return 1;
  }
  DriverConnection driver{.is_connected = options.has_driver};
  Descriptor driver_loss_pipe;  // the agent's end of the pipe
  if (options.has_driver && options.elastic) driver_loss_pipe = make_driver_loss_pipe(driver);
  Descriptor parent_pidfd = options.ends_with_parent ? open_pidfd(::getppid()) : Descriptor();
  const pid_t agent = ::fork();
  if (agent < 0) {
    print_error(std::string("cannot start the agent: ") + std::strerror(errno));
    return 1;
  }
  if (agent == 0) {
    driver.loss_pipe.reset();
    ::_exit(run_as_agent(options, state, foreground_pidfd, driver_loss_pipe, handled));
  }
  driver_loss_pipe.reset();
  const ProcessEnd end = forward_signals(agent, signals, driver, std::move(parent_pidfd));
  const std::string agent_loss = describe_agent_loss(options, agent, end);
  if (end.signal != 0 && options.elastic && !options.nodes) wait_for_workers(signals, agent_loss);
  if (!end_descendants(std::chrono::steady_clock::now() + Supervision::kKillTime))
    print_error("some processes of the job could not be ended; look at `ps -ef --forest`");
  // If the driver is lost, print no message, because only the driver would have read it. If this
  // launcher has no workers, the job may go on, because the driver may replace this launcher. Then
  // the driver tells the user.
  if (end.signal != 0 && driver.is_connected == options.has_driver && options.workers > 0)
    print_error(agent_loss + "; the job has ended");
  return end.exit_code();
}

}  // namespace farandole
