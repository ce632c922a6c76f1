// The keeper: the process that the user started. It does nothing but forward signals to its agent
// and, when the agent has ended in whatever way, end everything that the job has left. Two
// processes, so that either may be killed with SIGKILL and the other still cleans up.
#pragma once

#include "launcher/job_options.h"

namespace farandole {

// Runs a job on this host and returns the exit code for the command. Blocks until nothing of the
// job is left. The calling process must be single-threaded; its signal mask and its role as a child
// subreaper are changed for good.
int run_job(const JobOptions& options);

}  // namespace farandole
