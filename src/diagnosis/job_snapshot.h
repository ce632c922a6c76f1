// JobSnapshot: the state of all ranks of a job at one moment, and which rank waits for which. It is
// computed from the ranks' flight records.
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

// What the launcher knows about one worker at this moment.
struct WatchedWorker {
  std::string host;
  pid_t pid = 0;
  FlightReport report;
  std::string end;      // how the worker ended ("exited with code 0"); empty while it is alive
  int stop_signal = 0;  // the signal that stopped the worker; 0 if it runs
  // The hardware threads to which the worker is bound, such as "0-3"; empty if it is not bound.
  std::string cores{};
};

// All functions are pure. They accept any contents of the flight records, because a faulty worker
// may have overwritten its record.
class JobSnapshot {
 public:
  // `workers` is indexed by rank and must outlive this object.
  JobSnapshot(const std::vector<WatchedWorker>& workers, TimePoint now);

  int count() const { return static_cast<int>(workers_.size()); }
  TimePoint now() const { return now_; }
  const WatchedWorker& worker(int rank) const { return workers_[static_cast<std::size_t>(rank)]; }
  bool is_alive(int rank) const { return worker(rank).end.empty(); }

  // The call in which the rank's program waits; null if the program does not wait in a call.
  const RecordedCall* blocking_call(int rank) const;
  // Whether the rank has called join() in this group.
  bool has_joined(int rank, GroupId group) const;
  // This rank's call with the same group and name as `call`, which is a call of this snapshot. For
  // a message, the result is `call` itself or the other half of the message: the receive of a send,
  // or the send of a receive. Null if the rank has no such call in flight.
  const RecordedCall* matching_call(int rank, const RecordedCall& call) const;
  // callers() returns the ranks that have made this call; missing_ranks() returns the ranks that
  // must still make the call before it can run.
  std::vector<int> callers(const RecordedCall& call) const;
  std::vector<int> missing_ranks(const RecordedCall& call) const;
  // Finds a cycle of ranks that wait for each other: each rank waits for the next, and the last for
  // the first. The lowest rank comes first. The search starts at `rank`, which may be outside the
  // cycle. Empty if `rank` does not wait, directly or indirectly, for a rank of a cycle.
  std::vector<int> find_cycle(int rank) const;

 private:
  using CallKey = std::pair<GroupId, std::uint64_t>;  // the same call has the same key on all ranks
  // One rank's calls in flight, by key, so that comparing the calls of all ranks is fast.
  struct CallsInFlight {
    std::map<CallKey, const RecordedCall*> by_key;
    std::set<GroupId> joined;
  };

  static CallKey key_of(const RecordedCall& call) { return {call.group, call.name_hash}; }
  const CallsInFlight& calls(int rank) const { return calls_[static_cast<std::size_t>(rank)]; }
  bool is_missing(int rank, const RecordedCall& call) const;
  std::vector<int> ranks_awaited_by(int rank) const;

  const std::vector<WatchedWorker>& workers_;
  TimePoint now_;
  std::vector<CallsInFlight> calls_;  // by rank
};

}  // namespace farandole
