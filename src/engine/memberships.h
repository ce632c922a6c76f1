// Memberships: the GroupMember of this rank in each of its groups, and the mailbox of this rank. It
// advances the calls, and ends groups when a rank has died or left, or when this rank gives up. It
// never blocks before the groups end. Functions with a parameter `finished` append the records that
// they finish. Only the holder of the progress lock may use it.
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
    Mailbox::Transports transports;  // its channels are null if all ranks are on this host
    std::vector<std::int64_t> pids;  // of each rank, for error texts
  };
  explicit Memberships(Dependencies dependencies)
      : doorbells_(dependencies.doorbells),
        recorder_(dependencies.recorder),
        clock_(dependencies.clock),
        pids_(std::move(dependencies.pids)),
        channels_(dependencies.transports.channels),
        mailbox_(dependencies.transports, doorbells_, recorder_, clock_),
        failure_watch_(doorbells_) {}
  Memberships(const Memberships&) = delete;
  Memberships& operator=(const Memberships&) = delete;

  void add(std::unique_ptr<GroupMember> member);
  void remove(GroupId group);

  // Adds a call. If its group has ended or was removed, the call finishes immediately.
  void submit(Record& record, std::vector<Record*>& finished);
  // Runs one round for all groups. Returns true if it made progress.
  bool advance(std::vector<Record*>& finished);
  // Sets the time of all groups, and makes the next advance() receive from all channels. Call it at
  // deadline() at the latest, and before the last advance() that precedes a sleep. advance() does
  // not set the time, because reading the clock costs as much as advance() itself.
  void tick(TimePoint now);
  // The earliest deadline of all groups; `latest` if that is earlier.
  TimePoint deadline(TimePoint latest) const;
  // Prepares for sleep: from now on, everything that arrives from other hosts rings this rank's
  // bell. Call it after Doorbells::prepare_sleep() and a last advance().
  void ring_on_arrival() {
    if (channels_ != nullptr) channels_->ring_on_arrival();
  }
  // See Channels. watch_traffic() does nothing if this rank has no channels.
  void watch_traffic(std::function<void()> on_traffic) {
    if (channels_ != nullptr) channels_->watch_traffic(std::move(on_traffic));
  }
  void request_accept_and_receive_all() { channels_->request_accept_and_receive_all(); }
  // Whether the last advance() has left work, even if no call is in flight: unsent messages or an
  // unfinished connection.
  bool has_unsent() const { return has_unsent_; }

  // Ends all groups, and this rank leaves the job. Before that, it drives the steps that all
  // members have entered until they finish or make no progress any more. Only the first give_up()
  // has an effect.
  void give_up(const GiveUpReason& cause, std::vector<Record*>& finished);
  // Ends all groups, because the engine ends. Returns when no other rank writes to memory of this
  // rank's calls any more. Without a reason, the other ranks are not notified that this rank
  // leaves.
  void end_by_shutdown(std::optional<std::string_view> reason, std::vector<Record*>& finished);
  // Returns the groups that have ended since the last take_ended_groups().
  EndedGroups take_ended_groups() { return std::exchange(ended_groups_, {}); }
  bool any_group_has_ended() const { return !ended_groups_.empty(); }

  // Ends this process, which can neither finish nor undo a step. The other ranks get the reason.
  [[noreturn]] void abort_out_of_memory();

 private:
  // Why a group ends on this host.
  struct Ending {
    GroupFailure failure;
    std::string reason;       // why the rank has left
    bool is_from_other_host;  // another host has sent this end
  };

  bool advance_channels(std::vector<Record*>& finished);
  void handle_group_end(int sender, GroupEnd end);
  bool may_have_new_endings();
  void close_epoch(int dead_rank, std::string_view ending);
  void give_up_step(int leaving_rank, std::string_view reason);
  void forward_death();
  bool check_rank_exists(int rank, int sender);
  std::optional<Ending> ending_of(const GroupMember& member, const EndedRanks& ended) const;
  void end_failed_groups(std::vector<Record*>& finished);
  void end_failed_messages(const EndedRanks& ended, std::vector<Record*>& finished);
  bool advance_all(std::vector<Record*>& finished);
  bool advance_members(std::vector<Record*>& finished);
  void end_all(const GiveUpReason& cause, std::vector<Record*>& finished);
  // Calls GroupMember::end(), and keeps the group for take_ended_groups().
  bool end(GroupMember& member, const Status& status, std::vector<Record*>& finished);
  void finish_running_steps(std::vector<Record*>& finished);
  void wait_for_writers(std::vector<Record*>& finished);
  // Tells the other ranks that this rank leaves, and why. Only the first reason counts. Call it
  // after all groups have ended, because a rank that has left must not write any more. Call it
  // before the ended calls are published, because the program may then reuse their memory. A rank
  // that still reads this memory must see that this rank has left.
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
  std::optional<GiveUpReason> give_up_reason_;
  // Groups that end after their current step, because all hosts have entered that step.
  std::set<GroupId> ending_groups_;
  // The received ends of groups that this rank has not added yet. The id of a group is never used
  // again.
  std::vector<GroupEnd> early_group_ends_;
  bool has_forwarded_death_ = false;
  EndedGroups ended_groups_;
};

}  // namespace farandole
