// Scale: what agreement costs with so many members, counted and timed. All members run in this
// thread; entering takes no time here, for the question is what the control path does.
#pragma once

#include <cstdint>
#include <string>

namespace farandole::sim {

// Of one training step: every member submits the same tensors, and has seen all of them completed
// before the next.
struct StepCost {
  std::uint64_t messages = 0;
  std::uint64_t messages_busiest = 0;  // sent and received by the member that has most of them
  std::uint64_t bytes = 0;
  int hops = 0;                        // messages one after another, at most
  double nanoseconds_rank = 0;         // of wall time, on average
  double nanoseconds_coordinator = 0;  // of member 0
};

struct ScaleCosts {
  StepCost predicted;  // the same order everywhere
  StepCost surprise;   // the first step in which the orders differ
  StepCost learning;   // each member announces what is ready
  StepCost planned;    // any order, after it has been learnt
  int steps_to_plan = 0;
};

ScaleCosts measure_scale(int members, int tensors);

// What Horovod sends for a training step, at best: one cycle. A model, by formula.
struct HorovodModel {
  std::string name;
  std::uint64_t messages;
  std::uint64_t messages_busiest;
  std::uint64_t bytes;
  std::uint64_t hops;
};
HorovodModel horovod_cached_mpi(int members);
HorovodModel horovod_cached_gloo(int members);
HorovodModel horovod_uncached_mpi(int members, int tensors);

// The whole table for 8 … 8,192 members, in Markdown.
std::string scale_report(int members_max);

}  // namespace farandole::sim
