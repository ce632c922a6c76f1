// JobSnapshot: all ranks of a job at one moment, and who waits for whom; from what their flight
// records say.
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

// What is known of one worker now.
struct WatchedWorker {
  std::string host;
  pid_t pid = 0;
  FlightReport report;
  std::string end;     // "exited with code 0"; empty while it lives
  int stopped_by = 0;  // a signal
};

// Pure. Nothing that a worker may have written into its record leads it astray.
class JobSnapshot {
 public:
  // `workers` by rank; they outlive this.
  JobSnapshot(const std::vector<WatchedWorker>& workers, TimePoint now);

  int count() const { return static_cast<int>(workers_.size()); }
  TimePoint now() const { return now_; }
  const WatchedWorker& worker(int rank) const { return workers_[static_cast<std::size_t>(rank)]; }
  bool lives(int rank) const { return worker(rank).end.empty(); }

  // The call in which its program waits; null when it is somewhere else, as in its own work.
  const FlightCall* blocking_call(int rank) const;
  // Has it no more data, in this group?
  bool has_joined(int rank, GroupId group) const;
  // The call of this rank that belongs to that one, if it is in flight.
  const FlightCall* same_call(int rank, const FlightCall& call) const;
  // Who has called it, and who has to yet, so that it can run.
  std::vector<int> callers(const FlightCall& call) const;
  std::vector<int> missing(const FlightCall& call) const;
  // Ranks that wait for each other, each for the next and the last for the first, which is the
  // lowest; this one is among them, or waits for them. Empty if there are none.
  std::vector<int> cycle(int rank) const;

 private:
  using CallKey = std::pair<GroupId, std::uint64_t>;  // of the same call on all ranks
  // Of one rank. Every rank's calls are compared with those of all others.
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
