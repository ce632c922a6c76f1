// The agent: the process that starts the workers of this host and watches them. One loop in one
// thread also serves the workers' rendezvous and copies their output.
#pragma once

#include "base/descriptor.h"
#include "launcher/job_options.h"
#include "workers/worker_process.h"

namespace farandole {

// What the foreground process prepares for its agent.
struct AgentSetup {
  const JobOptions& options;
  const OriginalProcessState& original_state;
  // A pidfd of the foreground process. When that process ends, the job ends. But if the job is
  // elastic and on this host only, its workers first run until their next commit.
  const Descriptor& foreground_pidfd;
  const Descriptor& signal_descriptor;  // a signalfd; its signals are blocked
  // In an elastic job with a driver: a borrowed pipe into which the foreground process writes a
  // byte when the driver is lost. −1: there is no such pipe.
  int driver_loss_pipe = -1;
};

// Runs the job to its end and returns its exit code. When it returns, every process of the job has
// ended. The calling process must be single-threaded and a child subreaper.
int run_agent(const AgentSetup& setup);

}  // namespace farandole
