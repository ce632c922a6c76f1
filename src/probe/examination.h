// Examination: starts a probe on each host, and lets the probes connect to each other. Like a
// launcher of a job, a probe is started over ssh, or directly if its host is this host.
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
  std::vector<HostEntry> hosts;  // the slots have no meaning here
  SshOptions ssh;
  std::string program;                   // the path of our program on all hosts
  std::vector<std::string> settings;     // "NAME=value", for the probes on all hosts
  std::string ports;                     // the ports of jobs, from settings or environment
  std::chrono::seconds start_timeout{};  // how long a host has to answer
  bool shows_progress = false;           // if true, standard error must be a terminal
};

// Examines the hosts. If a host cannot be started or stops answering, the survey has the reason,
// and the other hosts are still examined. Blocks for some seconds, and up to the timeout if a host
// does not answer. When it returns, the processes that it has started have ended. The calling
// process must be single-threaded. Errors: kStop for a limit of this host.
Result<Survey> examine_hosts(const ExaminationPlan& plan);

}  // namespace farandole
