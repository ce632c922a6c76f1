// Stall verdict: which call waits for too long, for which ranks it waits, and what these ranks do
// instead. It is made from the flight records of all workers at one moment.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "diagnosis/job_snapshot.h"
#include "timeline/flight_record.h"

namespace farandole {

struct StallLimits {
  Duration limit{};         // a shorter wait is not a stall
  TimePoint counts_from{};  // time before this does not count, because the whole job was stopped by
                            // the user
};

struct StallVerdict {
  // The call that has waited longest, and its rank; handle 0 stands for init().
  int rank = 0;
  Handle handle = 0;
  CallState state = CallState::kWaiting;
  std::string title;  // "allreduce `grad/fc2`"
  TimePoint since{};
  std::vector<std::string> lines;
  // Running ranks of which the flight record does not say what they do; their Python stacks may.
  std::vector<int> unexplained;
};

// Empty if no rank waits too long, or if no rank can be named for which they wait. Pure.
std::optional<StallVerdict> stall_verdict(const JobSnapshot& snapshot, const StallLimits& limits);

}  // namespace farandole
