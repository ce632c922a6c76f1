// Scale: counts and times the cost of agreement for a number of members. All members run in this
// thread. Entering takes no time here, because only the control path is measured.
#pragma once

#include <cstdint>
#include <string>

namespace farandole::sim {

// The cost of one training step. Every member submits the same tensors, and all of them complete
// before the next step.
struct StepCost {
  std::uint64_t messages = 0;
  // sent and received by the member with the most messages
  std::uint64_t busiest_member_messages = 0;
  std::uint64_t bytes = 0;
  std::uint64_t coordinator_bytes = 0;  // sent and received by member 0
  int hops = 0;                         // the longest chain of messages that wait for each other
  double time_per_rank_ns = 0;          // wall time of the step, divided by the number of members
  double coordinator_time_ns = 0;       // time of the step on member 0
};

struct ScaleCosts {
  StepCost predicted;      // all members submit in the same order
  StepCost misprediction;  // the first step with different orders
  StepCost learning;       // a step in learn mode: each member announces what is ready
  StepCost planned;        // the orders differ, but the plan was learned
  int steps_to_plan = 0;
};

// The members are divided evenly among the hosts.
ScaleCosts measure_scale(int members, int tensors, int hosts = 1);

// What Horovod sends for a training step in the best case, which takes one cycle. A formula
// computes the numbers.
struct HorovodModel {
  std::string name;
  std::uint64_t messages;
  std::uint64_t busiest_member_messages;
  std::uint64_t bytes;
  std::uint64_t hops;
};
HorovodModel horovod_cached_mpi(int members);
HorovodModel horovod_cached_gloo(int members);
HorovodModel horovod_uncached_mpi(int members, int tensors);

// Returns the whole table for 8 … `members_max` (at most 8,192) members, in Markdown.
std::string scale_report(int members_max);

}  // namespace farandole::sim
