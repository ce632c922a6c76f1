// Starts one worker, or a helper program of the launcher.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "farandole/status.h"

namespace farandole {

// Why a command cannot be started, and the exit code that shells use for this reason.
struct ProgramProblem {
  int exit_code = 0;  // 127: not found, 126: not executable
  std::string message;
};
// Searches for a program in `path`, the value of PATH. Returns nothing if it can be started.
std::optional<ProgramProblem> check_program(const std::string& program, const std::string& path);
// Returns the path of the file that is executed for `program`. Empty if check_program() finds a
// problem.
std::string path_of_executable(const std::string& program, const std::string& path);

// The signal mask and the limit of open files with which the launcher was started. The launcher
// changes both for itself, and starts the workers with the original mask and limit.
struct OriginalProcessState {
  sigset_t signal_mask;     // the original signal mask
  rlimit descriptor_limit;  // the original limit of open files
};

struct ProcessPlan {
  const std::vector<std::string>& command;
  const std::vector<std::string>& environment;  // "NAME=value"
  std::vector<int> inherited;  // descriptors that stay open in the worker; all are borrowed
  int standard_input = -1;     // −1: empty
  int standard_output = -1;
  int standard_error = -1;
  // The numbers of the hardware threads on which the process may run; empty: those of the launcher.
  std::vector<int> hardware_threads{};
  const OriginalProcessState& original_state;
};

struct StartedProcess {
  pid_t pid = 0;
  Descriptor pidfd;
};

// Starts a worker or a helper program in a process group of its own. The kernel kills the process
// when the calling thread ends, so this thread must not end before the worker. Errors: kFixCall if
// the program cannot be executed, kStop for a system limit or if the process cannot be bound.
Result<StartedProcess> start_process(const ProcessPlan& plan);

}  // namespace farandole
