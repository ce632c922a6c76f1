// Examination: starts a probe on each host, over ssh or directly on its own host, as the driver
// starts launchers, and lets the probes try each other.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "farandole/status.h"
#include "probe/survey.h"
#include "remote/host_list.h"
#include "remote/ssh_command.h"

namespace farandole {

struct ExaminationPlan {
  std::vector<HostEntry> hosts;  // their slots are not used
  SshOptions ssh;
  std::string program;                   // the path of our program on all hosts
  std::vector<std::string> settings;     // "NAME=value", for the probes on all hosts
  std::string ports;                     // the ports that these settings or the environment choose
  std::chrono::seconds start_timeout{};  // for a host to answer
  bool shows_progress = false;           // on the standard error, which is a terminal
};

// Returns what was found. A host that cannot be started, or stops answering, has its reason in the
// survey, and the others are examined. Blocks for some seconds, and up to the timeout if a host
// does not answer. When it returns, the processes that it has started have ended. The calling
// process must be single-threaded. Errors: kStop for a limit of this host.
Result<Survey> examine_hosts(const ExaminationPlan& plan);

}  // namespace farandole
