// Stall verdict: which call waits for too long, for whom, and what those do instead; from what the
// flight records of all workers say at one moment.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "diagnosis/job_snapshot.h"
#include "timeline/flight_record.h"

namespace farandole {

struct StallLimits {
  Duration limit{};         // waiting up to so long is nothing
  TimePoint counts_from{};  // waiting before does not count: the user had stopped the whole job
};

struct StallVerdict {
  // The call of the rank that waits longest; handle 0 is init().
  int rank = 0;
  Handle handle = 0;
  CallState state = CallState::kWaiting;
  std::string title;  // "allreduce `grad/fc2`"
  TimePoint since{};
  std::vector<std::string> lines;
  // Living ranks of which only their Python stack could tell what they do.
  std::vector<int> unexplained;
};

// Pure. Nothing if nobody waits too long, or nobody can be named for whom.
std::optional<StallVerdict> stall_verdict(const JobSnapshot& snapshot, const StallLimits& limits);

}  // namespace farandole
