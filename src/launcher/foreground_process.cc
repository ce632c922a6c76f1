#include "launcher/foreground_process.h"

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

#include "base/process_end.h"
#include "jobs/job_sheet.h"
#include "launcher/agent.h"
#include "launcher/signal_setup.h"
#include "output/colors.h"
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

// Passes on the signals that the driver sends. Returns false if the driver is gone.
bool forward_signals_of_driver(pid_t agent) {
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

// Forwards signals until the agent has ended. The agent is in a process group of its own, so that a
// Ctrl-C reaches it only once, through us. If the driver ends, this clears `has_driver` and kills
// the agent. `parent` is the pidfd of another process, or invalid; if that process ends, the agent
// gets SIGTERM.
ProcessEnd forward_signals(pid_t agent, const Descriptor& signals, bool& has_driver,
                           Descriptor parent) {
  for (;;) {
    // poll() ignores an entry with descriptor −1.
    std::array<pollfd, 3> ready{{{signals.get(), POLLIN, 0},
                                 {has_driver ? STDIN_FILENO : -1, POLLIN, 0},
                                 {parent.get(), POLLIN, 0}}};
    ::poll(ready.data(), ready.size(), -1);
    if (ready[2].revents != 0) {
      parent.reset();
      print_error("the process that has started this launcher has ended; the job ends, too");
      ::kill(agent, SIGTERM);
    }
    if (has_driver && ready[1].revents != 0) {
      has_driver = forward_signals_of_driver(agent);
      if (!has_driver) ::kill(agent, SIGKILL);
    }
    signalfd_siginfo info{};
    if (ready[0].revents != 0 && ::read(signals.get(), &info, sizeof(info)) == sizeof(info)) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal != SIGCHLD) ::kill(agent, signal);
      if (signal == SIGTSTP) ::raise(SIGSTOP);
    }
    if (const auto end = reap(agent)) return *end;
  }
}

// Runs in the child process. Returns the exit code.
int run_as_agent(const JobOptions& options, const OriginalState& state,
                 const Descriptor& foreground, const sigset_t& handled) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_NAME, kAgentName);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  // The agent needs a signalfd of its own, because its reads must not block.
  const Descriptor signals(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (signals.valid()) return run_agent({options, state, foreground, signals});
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
  const OriginalState state = save_and_adjust_state();
  const sigset_t handled = handled_signals();
  block_signals(handled);
  const Descriptor foreground = open_pidfd(::getpid());
  if (!foreground.valid() || ::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    print_error(std::string("this kernel is too old (Linux 5.3 is needed): ") +
                std::strerror(errno));
    return 1;
  }
  const Descriptor signals(::signalfd(-1, &handled, SFD_CLOEXEC));
  if (!signals.valid()) {
    print_signalfd_error();
    return 1;
  }
  Descriptor parent = options.ends_with_parent ? open_pidfd(::getppid()) : Descriptor();
  const pid_t agent = ::fork();
  if (agent < 0) {
    print_error(std::string("cannot start the agent: ") + std::strerror(errno));
    return 1;
  }
  if (agent == 0) ::_exit(run_as_agent(options, state, foreground, handled));
  bool has_driver = options.has_driver;
  const ProcessEnd end = forward_signals(agent, signals, has_driver, std::move(parent));
  if (!end_descendants(std::chrono::steady_clock::now() + Supervision::kKillTime))
    print_error("some processes of the job could not be ended; look at `ps -ef --forest`");
  const std::string host = options.has_driver ? options.nodes->host + ", " : "";
  if (end.signal != 0 && has_driver == options.has_driver)
    print_error("the launcher's agent (" + host + "pid " + std::to_string(agent) +
                ") was killed by signal " + std::to_string(end.signal) + " (" +
                signal_name(end.signal) + "); the job has ended");
  return end.exit_code();
}

}  // namespace farandole
