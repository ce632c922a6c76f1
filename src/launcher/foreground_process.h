// The foreground process: the process that the user started. It forwards signals to its agent. When
// the agent has ended, for whatever reason, it ends every process that the job has left. There are
// two processes so that, if one of them is killed with SIGKILL, the other one still cleans up.
#pragma once

#include "launcher/job_options.h"

namespace farandole {

// Runs a job on this host and returns the exit code for the command. Blocks until nothing of the
// job is left. The calling process must be single-threaded; its signal mask and its role as a child
// subreaper are changed for good.
int run_job(const JobOptions& options);

}  // namespace farandole
