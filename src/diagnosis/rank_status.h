// Rank status: what one rank of a running job does now, and what it has done; for `farandole
// status`.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "diagnosis/job_snapshot.h"

namespace farandole {

enum class RankState : std::uint8_t {
  kOutside,   // has not called init()
  kForming,   // waits in init() for the others
  kComputes,  // its program is not in a call of ours
  kWaits,     // in a call that others have yet to make
  kRuns,      // in a call that all have made: data moves
  kJoined,    // has no more data
  kStopped,   // by a signal
  kLeft,      // has left the job, and still lives
  kEnded,
};

// Indexed by RankState. Programs read them.
inline constexpr std::array<std::string_view, 9> kRankStateNames = {
    "outside", "init", "computes", "waits", "runs", "joined", "stopped", "left", "ended"};

constexpr std::string_view name_of(RankState state) {
  return kRankStateNames[static_cast<std::size_t>(state)];
}

struct RankStatus {
  pid_t pid = 0;
  RankState state = RankState::kOutside;
  std::optional<TimePoint> since;  // nothing if nobody knows
  std::optional<FlightCall> call;  // in which its program is
  std::vector<int> waits_for;      // ranks that have yet to make that call
  std::string reason;              // how it has ended, why it left, the signal that has stopped it
  FlightCounts counts;             // a wait that goes on included
  std::optional<Duration> in_job;  // since its init(), of a member
};

// Pure.
RankStatus rank_status(const JobSnapshot& snapshot, int rank);

// "waits 3.2 s for rank 2"; in one line, without the call's name.
std::string describe(const RankStatus& status, TimePoint now);

}  // namespace farandole
