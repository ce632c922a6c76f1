// Failure: which ranks have died or left, and what that means for a group; and when this rank gives
// up by itself. The decisions are pure; only FailureWatch reads shared memory.
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

// Which ranks of the job have ended, as read at one time.
struct EndedRanks {
  std::optional<int> dead;                             // the first one
  std::uint32_t leavers_before_death = 0;              // how many tickets were drawn before
  std::vector<std::optional<Doorbells::Leaver>> left;  // by rank
};

// Why a group is over, and the rank whose end it was.
struct GroupFailure {
  Status status;
  int failed_rank;
};

// Nothing while the group goes on. A death ends all groups, a leave those that the rank was in, but
// for its own. The first cause is named: a leave that came before the death explains what the group
// waits for; a leave after it is only its consequence. `pids` are by rank, for the text.
std::optional<GroupFailure> failure_of(const EndedRanks& ended, const std::vector<int>& ranks,
                                       int own_rank, const std::vector<std::int64_t>& pids);

// Why this rank ends all its groups by itself, and what the others hear of it.
struct GivingUp {
  Status status;
  std::string reason;
};

// A group that has ended by itself has met a bug. Then this rank is no use to the others any more,
// and they must hear of it.
inline bool is_broken(const std::optional<Status>& ended) {
  return ended && ended->code() == StatusCode::kStop;
}
GivingUp giving_up_broken(const Status& ended);

// Gives up if the oldest call in flight has waited for `limit`; `oldest` may be null.
std::optional<GivingUp> giving_up_stalled(const Record* oldest, TimePoint now,
                                          std::chrono::seconds limit);

// Finds out whether ranks have ended since the last look. One thread at a time.
class FailureWatch {
 public:
  // `doorbells` outlives this.
  explicit FailureWatch(const Doorbells& doorbells) : doorbells_(doorbells) {}

  // Cheap: two loads.
  bool has_news() const {
    return doorbells_.closed_by().has_value() != death_seen_ ||
           doorbells_.leavers() != leaves_seen_;
  }
  // A rank that has drawn its ticket, and has not stored yet that it left, is not there yet: it
  // stays news until it is.
  EndedRanks read();

 private:
  const Doorbells& doorbells_;
  bool death_seen_ = false;
  std::uint32_t leaves_seen_ = 0;
};

}  // namespace farandole
