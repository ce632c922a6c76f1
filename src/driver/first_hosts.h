// Finds the first hosts of an elastic job that has a discovery program.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "driver/host_discovery.h"
#include "farandole/status.h"
#include "remote/host_list.h"
#include "workers/worker_process.h"

namespace farandole {

// Goes through the listed hosts in order, and takes each host that fits: the taken hosts together
// must have at most `slots_max` slots. `slots_max` is at least the number of slots of each host. A
// pure function.
std::vector<HostEntry> first_hosts(const std::vector<HostEntry>& listed_hosts, int slots_max);

struct FirstHosts {
  std::vector<HostEntry> hosts{};
  int signal = 0;  // the signal that has ended the search; 0: none
};

// What can end the search.
struct SearchLimits {
  std::chrono::seconds time_max{};
  const Descriptor& signals;  // a signalfd
  int caller = -1;            // a pidfd of the program that has started the job; −1: none
};

// Runs the discovery program until it lists hosts with enough slots. `show_line` gets lines for the
// user. Blocks for at most `time_max`. If the program that has started the job ends, the signal in
// the result is SIGTERM. Errors: kStop.
Result<FirstHosts> find_first_hosts(const DiscoveryPlan& plan, const SearchLimits& limits,
                                    const OriginalProcessState& state,
                                    const std::function<void(const std::string&)>& show_line);

}  // namespace farandole
