// Rank status: what one rank of a running job does now and how much it has done. `farandole status`
// shows it.
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
  kComputes,  // its program does not wait in a collective call
  kWaits,     // waits in a call that other ranks have not made yet
  kRuns,      // waits in a call that all ranks have made, so data moves
  kJoined,    // has called join(), because it has no more data
  kStopped,   // was stopped by a signal
  kLeft,      // has left the job, but its process still runs
  kEnded,
};

// Indexed by RankState. Programs read these names in `farandole status --json`, so they must not
// change.
inline constexpr std::array<std::string_view, 9> kRankStateNames = {
    "outside", "init", "computes", "waits", "runs", "joined", "stopped", "left", "ended"};

constexpr std::string_view name_of(RankState state) {
  return kRankStateNames[static_cast<std::size_t>(state)];
}

struct RankStatus {
  std::string host;
  pid_t pid = 0;
  std::string cores{};  // as in WatchedWorker
  RankState state = RankState::kOutside;
  std::optional<TimePoint> since;       // when `state` began; empty if unknown
  std::optional<RecordedCall> call;     // the call in which the program waits
  std::vector<int> waits_for;           // ranks that have not made this call yet
  std::string reason;                   // how the rank ended, why it left, or its stop signal
  FlightCounts counts;                  // with the time of the current wait
  std::optional<Duration> time_in_job;  // since init(); empty if the rank is not a member
};

// Returns the status of one rank. A pure function.
RankStatus rank_status(const JobSnapshot& snapshot, int rank);

// Returns one line without the call's name, such as "waits 3.2 s for rank 2".
std::string describe(const RankStatus& status, TimePoint now);

}  // namespace farandole
