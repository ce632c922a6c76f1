// Starting one worker.
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

// Why a command cannot be started, in the words and with the exit code of shells.
struct ProgramProblem {
  int exit_code = 0;  // 127: not found, 126: not executable
  std::string message;
};
// Looks a program up as the shell does. `path`: the value of PATH.
std::optional<ProgramProblem> check_program(const std::string& program, const std::string& path);

// What of our own state a worker must not inherit.
struct InheritedState {
  sigset_t signal_mask;     // as it was when we were started
  rlimit descriptor_limit;  // likewise
};

struct WorkerPlan {
  const std::vector<std::string>& command;
  const std::vector<std::string>& environment;  // "NAME=value"
  std::vector<int> inherited;  // stay open in the worker; all descriptors are borrowed
  int standard_output = -1;
  int standard_error = -1;
  const InheritedState& state;
};

struct StartedWorker {
  pid_t pid = 0;
  Descriptor handle;  // pidfd
};

// Starts a worker, or a helper of ours, in a process group of its own, with nothing to read on
// standard input; the kernel kills it when this process dies. Call from a thread that lives as long
// as the worker. Errors: kFixCall if the program cannot be executed, kStop for a system limit.
Result<StartedWorker> start_worker(const WorkerPlan& plan);

}  // namespace farandole
