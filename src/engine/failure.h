// Failure: decides whether a group ends because ranks have died or left, and whether this rank
// gives up. The decisions are pure functions; only FailureWatch reads shared memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "farandole/status.h"
#include "transport/shm/doorbells.h"

namespace farandole {

struct Record;

// Which ranks of the job have ended, read at one time.
struct EndedRanks {
  std::optional<int> first_dead_rank;     // the rank that died first
  std::uint32_t leaves_before_death = 0;  // how many ranks had left before that death
  std::string death_text = {};  // how that rank ended, for errors; empty stands for "has died"
  std::vector<std::optional<Doorbells::Leaver>> leavers;  // by rank
};

// Why a group is over, and the rank that ended the group by its death or leave.
struct GroupFailure {
  Status status;
  int failed_rank;
};

// Returns why the group of these ranks is over; empty if the group continues. A death ends all
// groups. When another rank leaves, only the groups of which it was a member end. If there are
// several causes, the earliest one is returned, because ranks often leave as a consequence of an
// earlier death or leave. `pids` are by rank, for the text.
std::optional<GroupFailure> failure_of(const EndedRanks& ended, const std::vector<int>& ranks,
                                       int own_rank, const std::vector<std::int64_t>& pids);

// Returns the failure of a group that has ended on another host because `rank` has left.
GroupFailure failure_of_leave(int rank, const std::string& reason,
                              const std::vector<std::int64_t>& pids);

// Why a message cannot reach a rank on another host. `cause` is the error of the connection.
Status error_of_unreachable(int rank, const std::string& cause,
                            const std::vector<std::int64_t>& pids);

// Why this rank ends all its groups and leaves the job.
struct GiveUpReason {
  Status status;       // the error of this rank's calls
  std::string reason;  // what the other ranks show in their errors
};

// Whether a group has ended with an internal error (a bug). Then this rank must give up, so that
// the other ranks do not wait for it.
inline bool is_broken(const std::optional<Status>& ended) {
  return ended && ended->code() == StatusCode::kStop;
}
GiveUpReason reason_of_broken_group(const Status& ended);

// Returns why this rank gives up, if `oldest_call` (null: no call) has waited for `limit`.
std::optional<GiveUpReason> reason_of_stall(const Record* oldest_call, TimePoint now,
                                            std::chrono::seconds limit);

// Tells whether ranks have died or left since the last read(). One thread at a time may use it.
class FailureWatch {
 public:
  // `doorbells` must outlive this object.
  explicit FailureWatch(const Doorbells& doorbells) : doorbells_(doorbells) {}

  // Whether read() would return something new. Cheap: two loads.
  bool has_changed() const {
    return doorbells_.closed_by().has_value() != death_read_ ||
           doorbells_.leavers() != leaves_read_;
  }
  // Returns which ranks have ended. A leaving rank draws a ticket, and then stores that it has
  // left. If this function reads between these two actions, the rank is not in the result, and
  // has_changed() stays true.
  EndedRanks read();

 private:
  const Doorbells& doorbells_;
  bool death_read_ = false;
  std::uint32_t leaves_read_ = 0;
};

}  // namespace farandole
