// Stall verdict: which call waits for too long, for which ranks it waits, and what these ranks do
// instead. It is computed from the flight records of all workers at one moment.
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
  TimePoint counts_from{};  // earlier waiting time does not count, because the user had stopped
                            // the whole job
};

struct StallVerdict {
  // The call that has waited longest, and the rank that made it. Handle 0 stands for init().
  int rank = 0;
  Handle handle = 0;
  CallState state = CallState::kWaiting;
  std::string title;  // "allreduce `grad/fc2`"
  TimePoint since{};
  std::vector<std::string> lines;
  // Running ranks for which the flight record does not explain the wait. Their Python stacks may
  // explain it.
  std::vector<int> unexplained_ranks;
};

// Returns the verdict. Empty if no rank waits too long, or if it is unknown for which ranks the
// waiting ranks wait. A pure function.
std::optional<StallVerdict> stall_verdict(const JobSnapshot& snapshot, const StallLimits& limits);

}  // namespace farandole
