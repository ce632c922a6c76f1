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

// Why a command cannot be started, with the text and the exit code that shells use.
struct ProgramProblem {
  int exit_code = 0;  // 127: not found, 126: not executable
  std::string message;
};
// Finds a program as the shell does. `path` is the value of PATH. Empty if it can be started.
std::optional<ProgramProblem> check_program(const std::string& program, const std::string& path);

// State of the launcher that a worker must not inherit: the worker gets these values instead.
struct OriginalState {
  sigset_t signal_mask;     // the mask that we were started with
  rlimit descriptor_limit;  // likewise
};

struct WorkerPlan {
  const std::vector<std::string>& command;
  const std::vector<std::string>& environment;  // "NAME=value"
  std::vector<int> inherited;  // these stay open in the worker; all descriptors are borrowed
  int standard_output = -1;
  int standard_error = -1;
  const OriginalState& state;
};

struct StartedWorker {
  pid_t pid = 0;
  Descriptor handle;  // pidfd
};

// Starts a worker or a helper program in a process group of its own. Its standard input is empty.
// The kernel kills it when the calling thread ends, so that thread must live as long as the worker.
// Errors: kFixCall if the program cannot be executed, kStop for a system limit.
Result<StartedWorker> start_worker(const WorkerPlan& plan);

}  // namespace farandole
