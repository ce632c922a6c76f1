// Memberships: the GroupMember of this rank in each of its groups, and its mailbox. It advances
// their calls, and ends groups when a rank has died or left, or when this rank gives up. It never
// blocks while the groups go on. Only the holder of the progress lock may call it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "channels/channels.h"
#include "engine/failure.h"
#include "engine/group_member.h"
#include "mailbox/mailbox.h"
#include "timeline/flight_record.h"
#include "transport/shm/doorbells.h"

namespace farandole {

class Memberships {
 public:
  using EndedGroups = std::vector<std::pair<GroupId, Status>>;

  struct Dependencies {  // the borrowed objects must outlive this one
    Doorbells& doorbells;
    FlightRecorder& recorder;
    const Clock& clock;
    Mailbox::Ways ways;              // its channels are null if all ranks are on this host
    std::vector<std::int64_t> pids;  // of each rank, for error texts
  };
  explicit Memberships(Dependencies dependencies)
      : doorbells_(dependencies.doorbells),
        recorder_(dependencies.recorder),
        clock_(dependencies.clock),
        pids_(std::move(dependencies.pids)),
        channels_(dependencies.ways.channels),
        mailbox_(dependencies.ways, doorbells_, recorder_, clock_),
        failure_watch_(doorbells_) {}
  Memberships(const Memberships&) = delete;
  Memberships& operator=(const Memberships&) = delete;

  void add(std::unique_ptr<GroupMember> member);
  void remove(GroupId group);

  // Functions with a parameter `finished` append the records that they finish to this list. Adds a
  // call. Finishes it immediately if its group has ended or was removed.
  void submit(Record& record, std::vector<Record*>& finished);
  // Runs one round for all groups. Returns true if it made progress.
  bool advance(std::vector<Record*>& finished);
  // Sets the time of all groups. advance() does not do this, because reading the clock costs as
  // much as advance() itself. Call this at deadline() at the latest, and before the last
  // advance() before a sleep, because the next advance() then receives from all channels.
  void tick(TimePoint now);
  // The earliest deadline of all groups, but not later than `at_most`.
  TimePoint deadline(TimePoint at_most) const;
  // Prepares for sleep: from now on, anything that comes from other hosts rings this rank's bell.
  // Call it after Doorbells::prepare_sleep() and a last advance().
  void arm() {
    if (channels_ != nullptr) channels_->arm();
  }
  // See Channels. serve() does nothing if this rank has no channels.
  void serve(std::function<void()> on_traffic) {
    if (channels_ != nullptr) channels_->serve(std::move(on_traffic));
  }
  void begin_serving() { channels_->begin_serving(); }
  // Whether messages waited for room after the last advance(), or a connection was being made, even
  // with no call in flight.
  bool has_unsent() const { return has_unsent_; }

  // Ends all groups, and this rank leaves the job. Before that, it drives the steps that all
  // members have entered until they finish or make no progress any more. Only the first give_up()
  // has an effect.
  void give_up(const GiveUpReason& why, std::vector<Record*>& finished);
  // Ends all groups, because the engine ends. Returns when no other rank writes to memory of this
  // rank's calls any more. Without a reason, the other ranks are not notified that this rank
  // leaves.
  void end_by_shutdown(std::optional<std::string_view> reason, std::vector<Record*>& finished);
  // Returns the groups that have ended since the last take_ended().
  EndedGroups take_ended() { return std::exchange(ended_, {}); }
  bool some_have_ended() const { return !ended_.empty(); }

  // Ends this process, because a step that is half done cannot be undone. The other ranks get the
  // reason.
  [[noreturn]] void abort_out_of_memory();

 private:
  // Why a group ends here, and what other hosts are told about it.
  struct Ending {
    GroupFailure failure;
    std::string reason;   // why the rank has left
    bool from_elsewhere;  // another host has told us
  };

  bool advance_channels(std::vector<Record*>& finished);
  void take_group_end(int sender, GroupEnd end);
  bool may_have_new_endings();
  void close_epoch(int dead_rank, std::string_view ending);
  void give_up_step(int left_rank, std::string_view reason);
  void pass_on_death();
  bool check_rank_exists(int rank, int sender);
  std::optional<Ending> ending_of(const GroupMember& member, const EndedRanks& ended) const;
  void end_failed_groups(std::vector<Record*>& finished);
  void end_failed_messages(const EndedRanks& ended, std::vector<Record*>& finished);
  bool advance_all(std::vector<Record*>& finished);
  bool advance_members(std::vector<Record*>& finished);
  void end_all(const GiveUpReason& why, std::vector<Record*>& finished);
  // Calls GroupMember::end().
  bool end(GroupMember& member, const Status& status, std::vector<Record*>& finished);
  void finish_running_steps(std::vector<Record*>& finished);
  void wait_for_writers(std::vector<Record*>& finished);
  // Tells the other ranks that this rank leaves, and why. Only the first reason counts. Call it
  // after all groups have ended, because a rank that has left must not write any more. Call it
  // before the ended calls are published: the program may then reuse their memory, and a rank that
  // still reads it must be able to see that this rank has left.
  void leave(std::string_view reason);

  Doorbells& doorbells_;
  FlightRecorder& recorder_;
  const Clock& clock_;
  const std::vector<std::int64_t> pids_;
  Channels* const channels_;
  std::vector<std::unique_ptr<GroupMember>> members_;
  Mailbox mailbox_;
  FailureWatch failure_watch_;
  bool has_new_members_ =
      false;  // a member of a new group may have died before the group was added
  bool has_unsent_ = false;
  bool has_left_ = false;
  std::optional<GiveUpReason> given_up_;
  // Groups that end only after their current step, because all hosts have entered that step.
  std::set<GroupId> ending_groups_;
  // The received ends of groups that this rank has not added yet. The id of a group is never used
  // again.
  std::vector<GroupEnd> early_ends_;
  bool death_passed_on_ = false;
  EndedGroups ended_;
};

}  // namespace farandole
