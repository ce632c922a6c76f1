// The foreground process: the process that the user started. It forwards signals to its agent. When
// the agent has ended, it ends every process that is left of the job; workers of an elastic job may
// first finish their step. The launcher has two processes so that one can clean up if the other is
// killed with SIGKILL.
#pragma once

#include "launcher/job_options.h"

namespace farandole {

// Runs a job on this host and returns the exit code for the command. Blocks until no process of the
// job is left. The calling process must be single-threaded. The function changes the signal mask of
// this process and makes the process a child subreaper.
int run_job(const JobOptions& options);

}  // namespace farandole
