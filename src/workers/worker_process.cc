#include "workers/worker_process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/cores.h"
#include "base/format.h"

namespace farandole {
namespace {

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const auto& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

bool is_folder(const std::string& name) {
  struct stat info{};
  return ::stat(name.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// Returns why an executable file cannot be run, or nothing if it is a program. The kernel does not
// run a text file without a `#!` line, and the C library would pass such a file to `sh`.
std::optional<std::string> script_problem(const std::string& path) {
  std::array<char, 256> first_bytes{};
  std::ifstream file(path, std::ios::binary);
  file.read(first_bytes.data(), first_bytes.size());
  std::string text(first_bytes.data(), static_cast<std::size_t>(file.gcount()));
  if (text.empty() || text.find('\0') != std::string::npos) return std::nullopt;
  if (!text.starts_with("#!"))
    return "is a text file whose first line does not name its interpreter, such as `#!/usr/bin/env "
           "python3`";
  std::istringstream line(text.substr(2, text.find('\n') - 2));
  std::string interpreter;
  line >> interpreter;
  if (::access(interpreter.c_str(), X_OK) == 0) return std::nullopt;
  return "needs the interpreter `" + interpreter + "`, which does not exist";
}

// Returns why a file cannot be started. The text is empty if the file does not exist. Returns
// nothing if the file can be started.
std::optional<std::string> start_problem(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) return "";
  if (S_ISDIR(info.st_mode)) return "is a folder, not a program";
  if (!S_ISREG(info.st_mode) || ::access(path.c_str(), X_OK) != 0) return "is not executable";
  return script_problem(path);
}

// Returns the mask of these hardware threads, with enough words for the largest number. Empty if
// there are no hardware threads.
std::vector<cpu_set_t> cpu_mask(const std::vector<int>& hardware_threads) {
  std::vector<cpu_set_t> mask;
  for (const int number : hardware_threads) {
    mask.resize(std::max(mask.size(), static_cast<std::size_t>(number) / CPU_SETSIZE + 1));
    CPU_SET_S(number, mask.size() * sizeof(cpu_set_t), mask.data());
  }
  return mask;
}

// The arguments of the child, made before the fork, because the child must not allocate memory.
struct ExecArguments {
  const std::string& program;
  std::vector<char*> arguments;
  std::vector<char*> environment;
  std::vector<cpu_set_t> mask;
  pid_t launcher = 0;
};

// Why the child could not execute the program.
struct ExecFailure {
  bool failed_to_bind = false;  // the process could not be bound to its hardware threads
  int error = 0;                // errno
};

// Runs in the child, so it must be safe between fork and exec. Returns only if it fails.
ExecFailure exec_worker(const ProcessPlan& plan, const ExecArguments& exec) {
  ::setpgid(0, 0);
  if (!exec.mask.empty() &&
      ::sched_setaffinity(0, exec.mask.size() * sizeof(cpu_set_t), exec.mask.data()) != 0)
    return {.failed_to_bind = true, .error = errno};
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return {.error = errno};
  // The launcher may have died before prctl() took effect.
  if (::getppid() != exec.launcher) ::_exit(1);
  const int input =
      plan.standard_input >= 0 ? plan.standard_input : ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (input < 0 || ::dup2(input, STDIN_FILENO) < 0 ||
      ::dup2(plan.standard_output, STDOUT_FILENO) < 0 ||
      ::dup2(plan.standard_error, STDERR_FILENO) < 0)
    return {.error = errno};
  for (const int descriptor : plan.inherited)
    if (::fcntl(descriptor, F_SETFD, 0) != 0) return {.error = errno};
  ::setrlimit(RLIMIT_NOFILE, &plan.original_state.descriptor_limit);
  ::sigprocmask(SIG_SETMASK, &plan.original_state.signal_mask, nullptr);
  ::execve(exec.program.c_str(), exec.arguments.data(), exec.environment.data());
  return {.error = errno};
}

// Returns what the failed child has sent through the pipe; empty if exec succeeded.
std::optional<ExecFailure> read_failure(const Descriptor& read_end) {
  ExecFailure failure;
  ssize_t count = -1;
  do {
    count = ::read(read_end.get(), &failure, sizeof(failure));
  } while (count < 0 && errno == EINTR);
  return count == sizeof(failure) ? std::optional(failure) : std::nullopt;
}

Status error_of(const ExecFailure& failure, const ProcessPlan& plan) {
  if (failure.failed_to_bind)
    return Status::stop(format_text(
        "cannot bind a worker to the hardware threads {}: {}; start the job with --bind-to none",
        list_text(plan.hardware_threads), std::strerror(failure.error)));
  return Status::fix_call("cannot execute `" + plan.command.front() +
                          "`: " + std::strerror(failure.error));
}

Status start_error(const char* call) {
  return Status::stop(std::string("cannot start a worker: ") + call + ": " + std::strerror(errno) +
                      " (look at `ulimit -u` and `ulimit -n`)");
}

struct FoundProgram {
  std::string path;     // empty if no file in PATH can be started
  std::string problem;  // if `path` is empty: why the file that was found cannot be started
};

FoundProgram find_program(const std::string& program, const std::string& path) {
  std::vector<std::string> candidates;
  if (program.find('/') != std::string::npos) {
    candidates.push_back(program);
  } else {
    std::istringstream folders(path);
    for (std::string folder; std::getline(folders, folder, ':');)
      candidates.push_back((folder.empty() ? "." : folder) + "/" + program);
  }
  std::string last_problem;
  for (const auto& candidate : candidates) {
    const auto problem = start_problem(candidate);
    if (!problem) return {candidate, ""};
    // As shells do, ignore folders that have the name of the program.
    const bool is_ignored = candidate != program && is_folder(candidate);
    if (!is_ignored && !problem->empty()) last_problem = *problem;
  }
  return {"", last_problem};
}

}  // namespace

std::optional<ProgramProblem> check_program(const std::string& program, const std::string& path) {
  const FoundProgram found = find_program(program, path);
  if (!found.path.empty()) return std::nullopt;
  const bool is_script = program.ends_with(".py");
  const std::string hint =
      is_script ? "; to run a Python script, use `farandole run -n N python " + program + " …`"
                : "";
  if (!found.problem.empty())
    return ProgramProblem{126, "`" + program + "` " + found.problem + hint};
  return ProgramProblem{127, "command not found: `" + program + "`" + hint};
}

std::string path_of_executable(const std::string& program, const std::string& path) {
  return find_program(program, path).path;
}

Result<StartedProcess> start_process(const ProcessPlan& plan) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return start_error("pipe2");
  const Descriptor read_end(ends[0]);
  Descriptor write_end(ends[1]);
  const char* path = std::getenv("PATH");
  const FoundProgram found = find_program(plan.command.front(), path != nullptr ? path : "");
  // If no file was found, execve() returns the error.
  const ExecArguments exec{.program = found.path.empty() ? plan.command.front() : found.path,
                           .arguments = pointers_to(plan.command),
                           .environment = pointers_to(plan.environment),
                           .mask = cpu_mask(plan.hardware_threads),
                           .launcher = ::getpid()};
  const pid_t pid = ::fork();
  if (pid < 0) return start_error("fork");
  if (pid == 0) {
    const ExecFailure failure = exec_worker(plan, exec);
    if (::write(write_end.get(), &failure, sizeof(failure)) < 0) ::_exit(126);
    ::_exit(127);
  }
  ::setpgid(pid, pid);  // the child calls it, too, but perhaps too late for a signal
  write_end.reset();
  if (const auto failure = read_failure(read_end)) {
    ::waitpid(pid, nullptr, 0);
    return error_of(*failure, plan);
  }
  StartedProcess worker{pid, Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)))};
  if (!worker.pidfd.valid()) {
    const Status status = start_error("pidfd_open");
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    return status;
  }
  return worker;
}

}  // namespace farandole
