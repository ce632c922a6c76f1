// Hosts: which ranks of a job are on the same host. Each rank says which LocalStore it uses; ranks
// that use the same one are on one host. Hosts are numbered in the order of their lowest ranks. The
// functions are pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "farandole/knobs.h"
#include "farandole/status.h"

namespace farandole {

// The facts about a rank that all ranks know.
struct RankInfo {
  int host = 0;           // the number of its host; −1: the rank has not joined
  std::string host_name;  // for messages to the user; several hosts may have the same name
  std::int64_t pid = 0;   // in the PID namespace of its host
  std::vector<std::string> addresses;  // where other hosts reach the rank; empty in a one-host job
  std::string cores{};                 // the hardware threads that the rank may use, such as "0-3"
};

// Returns the number of each rank's host, by rank. `tokens` are the host tokens of the ranks'
// LocalStores, by rank.
std::vector<int> host_numbers(const std::vector<std::string>& tokens);

// Returns the topology of a rank, with all fields set.
RankTopology topology_of(int rank, const std::vector<RankInfo>& ranks);

// Returns the number of hardware threads that the ranks of a host may use together. If ranks are
// bound to different cores, this number is larger than the number for one rank.
int cores_of_ranks(int host, const std::vector<RankInfo>& ranks);

// Returns the hosts and the ranks on them that have joined: "fox (ranks 0, 1), hen (rank 2)".
std::string hosts_text(const std::vector<RankInfo>& ranks);

// Compares the topology from the launcher with the topology from the records of all ranks. Local
// and cross ranks and sizes of `given` may be unknown (−1). Errors: kFixCall, with both topologies
// and the hosts.
Status check_given_topology(const RankTopology& given, const std::vector<RankInfo>& ranks);

}  // namespace farandole
