// JobSnapshot: the state of all ranks of a job at one moment, and which rank waits for which. It is
// made from their flight records.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "timeline/flight_record.h"

namespace farandole {

// What the launcher knows about one worker now.
struct WatchedWorker {
  std::string host;
  pid_t pid = 0;
  FlightReport report;
  std::string end;     // "exited with code 0"; empty while it lives
  int stopped_by = 0;  // the signal that stopped it; 0: it runs
};

// Pure. Accepts any contents of the flight records, because a worker may have overwritten its own.
class JobSnapshot {
 public:
  // `workers` is indexed by rank and must outlive this object.
  JobSnapshot(const std::vector<WatchedWorker>& workers, TimePoint now);

  int count() const { return static_cast<int>(workers_.size()); }
  TimePoint now() const { return now_; }
  const WatchedWorker& worker(int rank) const { return workers_[static_cast<std::size_t>(rank)]; }
  bool lives(int rank) const { return worker(rank).end.empty(); }

  // The call in which the rank's program waits; null if the program is elsewhere, such as in its
  // own computation.
  const FlightCall* blocking_call(int rank) const;
  // Whether the rank has called join in this group.
  bool has_joined(int rank, GroupId group) const;
  // This rank's call with the group and the name of `call`; null if it is not in flight.
  const FlightCall* same_call(int rank, const FlightCall& call) const;
  // callers(): the ranks that have made this call. missing(): the ranks that must still make it
  // before it can run.
  std::vector<int> callers(const FlightCall& call) const;
  std::vector<int> missing(const FlightCall& call) const;
  // A cycle of ranks that wait for each other: each waits for the next, and the last for the first.
  // The lowest rank comes first. `rank` is in the cycle or waits for it. Empty if there is no
  // cycle.
  std::vector<int> cycle(int rank) const;

 private:
  using CallKey = std::pair<GroupId, std::uint64_t>;  // equal on all ranks for the same call
  // One rank's calls in flight, by key, so that comparing the calls of all ranks is fast.
  struct CallsInFlight {
    std::map<CallKey, const FlightCall*> by_key;
    std::set<GroupId> joined;
  };

  static CallKey key_of(const FlightCall& call) { return {call.group, call.name_hash}; }
  const CallsInFlight& calls(int rank) const { return calls_[static_cast<std::size_t>(rank)]; }
  bool is_missing(int rank, const FlightCall& call) const;
  std::vector<int> awaited_by(int rank) const;

  const std::vector<WatchedWorker>& workers_;
  TimePoint now_;
  std::vector<CallsInFlight> calls_;  // by rank
};

}  // namespace farandole
