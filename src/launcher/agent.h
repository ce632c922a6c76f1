// The agent: the process that starts the workers of this host, watches them, and serves their
// rendezvous and their output from one loop in one thread.
#pragma once

#include "base/descriptor.h"
#include "launcher/job_options.h"
#include "launcher/worker_process.h"

namespace farandole {

// The name of its process. The kernel keeps 15 letters.
inline constexpr const char* kAgentName = "farandole-agent";

// What the foreground process prepares for its agent.
struct AgentSetup {
  const JobOptions& options;
  const OriginalState& state;
  const Descriptor& foreground;  // a pidfd: the job ends when the foreground process does
  const Descriptor& signals;     // a signalfd; its signals are blocked
};

// Runs the job to its end and returns its exit code. Every process of the job has ended then.
// The calling process must be single-threaded and a child subreaper.
int run_agent(const AgentSetup& setup);

}  // namespace farandole
