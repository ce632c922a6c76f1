// Memberships: this rank's part in all its groups: moves their calls on, and ends them, when a rank
// has died or left, or when this rank gives up. Never blocks while the groups go on; only the
// holder of the progress lock comes in here.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/failure.h"
#include "engine/group_member.h"
#include "timeline/flight_record.h"
#include "transport/shm/doorbells.h"

namespace farandole {

class Memberships {
 public:
  using EndedGroups = std::vector<std::pair<GroupId, Status>>;

  // All that is borrowed outlives this. `pids` are those of the members, by rank, for texts.
  Memberships(Doorbells& doorbells, FlightRecorder& recorder, const Clock& clock,
              std::vector<std::int64_t> pids)
      : doorbells_(doorbells),
        recorder_(recorder),
        clock_(clock),
        pids_(std::move(pids)),
        failures_(doorbells) {}
  Memberships(const Memberships&) = delete;
  Memberships& operator=(const Memberships&) = delete;

  void add(std::unique_ptr<GroupMember> member);
  void remove(GroupId group);

  // These append the records that they finish to `finished`.
  // Takes part in the call from now on; finishes it at once if its group has ended or is gone.
  void submit(Record& record, std::vector<Record*>& finished);
  // One round for all groups. True if anything moved.
  bool advance(std::vector<Record*>& finished);
  // Tells the groups the time. advance() does not read the clock, because that costs as much as
  // advance() itself. Must be called at deadline() at the latest.
  void tick(TimePoint now);
  // The earliest one, but not later than `at_most`.
  TimePoint deadline(TimePoint at_most) const;
  // Messages wait for room, also with nothing in flight. As the last advance() has left it.
  bool has_unsent() const { return unsent_; }

  // All groups end with this, and this rank leaves the job. It drives the steps that all have
  // entered before, until they are done or do not move any more. Only the first call counts.
  void give_up(const GivingUp& why, std::vector<Record*>& finished);
  // The end of the engine. Returns when no other rank writes into memory of our calls any more.
  // Without a reason the others do not hear that this rank leaves.
  void end_by_shutdown(std::optional<std::string_view> reason, std::vector<Record*>& finished);
  // Groups that have ended since the last call.
  EndedGroups take_ended() { return std::exchange(ended_, {}); }
  bool some_have_ended() const { return !ended_.empty(); }

  // In the middle of a step there is no way back: the others get the reason, and this process ends.
  [[noreturn]] void abort_out_of_memory();

 private:
  void end_failed_groups(std::vector<Record*>& finished);
  void end_all(const Status& status, std::vector<Record*>& finished);
  void end(GroupMember& member, const Status& status, std::vector<Record*>& finished);
  void finish_running_steps(std::vector<Record*>& finished);
  void wait_for_writers(std::vector<Record*>& finished);
  // Tells the others that this rank leaves, and why. Only the first reason counts. After all groups
  // have ended, since a rank that has left writes nothing any more; before the calls are published,
  // since the others may still read their memory.
  void leave(std::string_view reason);

  Doorbells& doorbells_;
  FlightRecorder& recorder_;
  const Clock& clock_;
  const std::vector<std::int64_t> pids_;
  std::vector<std::unique_ptr<GroupMember>> members_;
  FailureWatch failures_;
  bool members_are_new_ = false;  // and may have ended before they came
  bool unsent_ = false;
  bool has_left_ = false;
  std::optional<Status> given_up_;  // why we have left, if we did so by ourselves
  EndedGroups ended_;
};

}  // namespace farandole
