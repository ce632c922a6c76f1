#include "launcher/worker_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>

namespace farandole {
namespace {

std::vector<char*> as_pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const auto& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

bool is_file(const std::string& name) {
  struct stat facts{};
  return ::stat(name.c_str(), &facts) == 0 && !S_ISDIR(facts.st_mode);
}

// Only in the child, and only what is allowed between fork and exec. Returns errno.
int become_the_worker(const WorkerPlan& plan, pid_t launcher, char* const* arguments,
                      char* const* environment) {
  ::setpgid(0, 0);
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return errno;
  // The launcher may have died before the kernel knew that we want to die with it.
  if (::getppid() != launcher) ::_exit(1);
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing < 0 || ::dup2(nothing, STDIN_FILENO) < 0 ||
      ::dup2(plan.standard_output, STDOUT_FILENO) < 0 ||
      ::dup2(plan.standard_error, STDERR_FILENO) < 0)
    return errno;
  if (nothing > STDERR_FILENO) ::close(nothing);
  for (const int descriptor : plan.inherited)
    if (::fcntl(descriptor, F_SETFD, 0) != 0) return errno;
  ::setrlimit(RLIMIT_NOFILE, &plan.state.descriptor_limit);
  ::sigprocmask(SIG_SETMASK, &plan.state.signal_mask, nullptr);
  ::execvpe(arguments[0], arguments, environment);
  return errno;
}

// What the child reports through the pipe before it gives up; nothing comes when exec succeeded.
int read_failure(const Descriptor& report) {
  int failure = 0;
  ssize_t count = -1;
  do {
    count = ::read(report.get(), &failure, sizeof(failure));
  } while (count < 0 && errno == EINTR);
  return count == sizeof(failure) ? failure : 0;
}

Status system_error(const char* call) {
  return Status::stop(std::string("cannot start a worker: ") + call + ": " + std::strerror(errno) +
                      " (look at `ulimit -u` and `ulimit -n`)");
}

}  // namespace

std::optional<ProgramProblem> check_program(const std::string& program, const std::string& path) {
  std::vector<std::string> candidates;
  if (program.find('/') != std::string::npos) {
    candidates.push_back(program);
  } else {
    std::istringstream folders(path);
    for (std::string folder; std::getline(folders, folder, ':');)
      candidates.push_back((folder.empty() ? "." : folder) + "/" + program);
  }
  bool found = false;
  for (const auto& candidate : candidates) {
    if (!is_file(candidate)) continue;
    if (::access(candidate.c_str(), X_OK) == 0) return std::nullopt;
    found = true;
  }
  const bool script = program.ends_with(".py");
  const std::string hint =
      script ? "; to run a Python script say `farandole run -n N python " + program + " …`" : "";
  if (found) return ProgramProblem{126, "`" + program + "` is not executable" + hint};
  return ProgramProblem{127, "command not found: `" + program + "`" + hint};
}

Result<StartedWorker> start_worker(const WorkerPlan& plan) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return system_error("pipe2");
  const Descriptor report(ends[0]);
  Descriptor reporter(ends[1]);
  const std::vector<char*> arguments = as_pointers(plan.command);
  const std::vector<char*> environment = as_pointers(plan.environment);
  const pid_t launcher = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return system_error("fork");
  if (pid == 0) {
    const int failure = become_the_worker(plan, launcher, arguments.data(), environment.data());
    if (::write(reporter.get(), &failure, sizeof(failure)) < 0) ::_exit(126);
    ::_exit(127);
  }
  ::setpgid(pid, pid);  // here too: we may want to signal the group before the child has made it
  reporter.reset();
  if (const int failure = read_failure(report); failure != 0) {
    ::waitpid(pid, nullptr, 0);
    return Status::fix_call("cannot execute `" + plan.command.front() +
                            "`: " + std::strerror(failure));
  }
  StartedWorker worker{pid, Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)))};
  if (!worker.handle.valid()) {
    const Status status = system_error("pidfd_open");
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    return status;
  }
  return worker;
}

}  // namespace farandole
