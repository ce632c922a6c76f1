// Membership: decides which workers of an elastic job form its group, and when. The caller reports
// what happens to the workers, and gets decisions: form a group, start a worker, end a worker, or
// end the job. The class has no thread, clock, socket or process, so tests and simulations can
// drive it.
//
// The job has slots for workers, which are numbered from 0; new hosts add slots. Each slot has at
// most one worker at a time, so the functions name workers by their slots. The group of the job is
// formed again and again; each of these groups has a number, its *epoch*, which counts from 1.
//
// The next epoch is formed when all members of the current epoch that still run have asked for a
// rank. A member asks after its engine has stopped, so nothing writes to the memory of the old
// group any more. For the same reason, a worker that has ended must be reaped before worker_ended()
// is called.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/time_point.h"

namespace farandole {

// A group of the job and its number. Rank 0 has the state of the training, if any worker has that
// state.
struct Epoch {
  std::int64_t number = 0;
  std::vector<int> workers{};  // by rank: the slot of the worker
  friend bool operator==(const Epoch&, const Epoch&) = default;
};

class Membership {
 public:
  struct Options {
    int workers = 1;      // how many slots there are at first
    int workers_min = 1;  // an epoch has at least this many workers
    // At most this many workers run at a time. Workers that are about to leave do not count.
    int workers_max = std::numeric_limits<int>::max();
    // How many epochs there may be after the first one; empty: any number.
    std::optional<int> resets_max{};
    // After the worker of a slot has failed, the slot stays empty for a time. This time is
    // cooldown_min after the first failure, doubles with each further failure, and is at most
    // cooldown_max. It is cooldown_min again after a worker has run ten times as long as the last
    // cooldown.
    std::chrono::seconds cooldown_min{1};
    std::chrono::seconds cooldown_max{60};
    // How long a stopped worker (SIGSTOP) may delay the others before it is killed.
    std::chrono::seconds stopped_time_max{10};
    // How long the members wait for enough workers.
    std::chrono::seconds shortage_max{600};
    // How long workers wait for others before the user is told which workers are late. If this time
    // is 0, the user is never told.
    std::chrono::seconds notice_after{10};
  };

  explicit Membership(const Options& options);

  // Adds slots. Workers can be started in these slots immediately.
  void add_slots(int count);

  void worker_started(int worker, TimePoint now);
  // The worker asks for a rank in the next epoch. `left_epoch` is the epoch that it has left; 0 if
  // it is new. `state_epoch` is the epoch in which it received the state of the training; 0 if it
  // has not received the state yet. Rank 0 sends the state to all members before the first step of
  // an epoch. So a new worker is a member before it has the state.
  void rank_wanted(int worker, std::int64_t left_epoch, std::int64_t state_epoch);
  // The worker has ended and was reaped.
  void worker_ended(int worker, bool succeeded, TimePoint now);
  void worker_stopped(int worker, TimePoint now);
  void worker_continued(int worker);
  // From now on, no worker can be started in this slot, because its host is lost.
  void slot_closed(int worker) { slot(worker).is_closed = true; }
  // The host is about to leave: no worker can be started in this slot, and the worker of the slot
  // ends at the next change of the members. The worker stays a member while no other worker has the
  // state of the training, or while there would be too few workers without this worker.
  void slot_leaves(int worker);
  // Workers can be started in this slot again.
  void slot_opened(int worker);

  // What a new launcher of node 0 knows about a job that its lost predecessor has begun.
  struct RecoveredJob {
    Epoch last_epoch{};                  // the newest group whose members are known
    std::vector<int> running_members{};  // the members of that group that still run
    // Running workers that were members of an older group, and may not have left it yet. Their node
    // did not learn that the other nodes have continued without it.
    std::vector<int> members_of_older_groups{};
    std::int64_t state_epoch = 0;         // see state_epoch()
    std::int64_t newest_epoch = 0;        // the newest epoch, if it is later than last_epoch
    bool lost_launcher_was_first = true;  // no other launcher of node 0 was lost before
  };
  // Continues a job whose launcher was lost. Before this call, call worker_started() for all
  // running workers. Call this function once, before the first decide(). rank_wanted() may reveal a
  // newer epoch. The next epoch skips two numbers. The lost launcher may have used the first of
  // these numbers for a group that only some members know. So if two groups have successive
  // numbers, the same launcher has formed both.
  void continue_from(const RecoveredJob& recovered_job, TimePoint now);
  // From now on, no worker is started, because a worker has succeeded.
  void finish() { is_finishing_ = true; }

  struct Decisions {
    std::optional<Epoch> new_epoch{};        // the group that is formed now
    std::vector<int> slots_to_start{};       // start a new worker in each of these slots
    std::vector<int> stopped_workers{};      // kill these workers, which are stopped (SIGSTOP)
    std::vector<int> superfluous_workers{};  // kill these workers, which are not members any more
    std::vector<int> late_workers{};         // tell the user that the others wait for these workers
    bool announces_change = false;  // ask the members to form a group again at their next step
    std::string end_reason{};       // why the job must end; empty: the job continues
  };
  // Each decision is returned once.
  Decisions decide(TimePoint now);
  // The time at which decide() must be called again, even if nothing happens before.
  std::optional<TimePoint> deadline() const;

  // Call it if a worker has had the state of the training. From then on, workers without the state
  // cannot start the training from the beginning.
  void set_any_worker_had_state() { any_worker_had_state_ = true; }
  // Whether any worker with the state of the training has asked for a rank.
  bool any_worker_had_state() const { return any_worker_had_state_; }
  // A member of the current epoch has the newest state if it received the state in the epoch
  // state_epoch() or later. 0: no worker had the state when the current epoch was formed.
  std::int64_t state_epoch() const { return state_epoch_; }
  const Epoch& epoch() const { return epoch_; }
  // How many workers of the current epoch still run.
  int count_running_members() const;
  // Whether any worker runs, member or not.
  bool any_worker_runs() const { return std::ranges::any_of(slots_, &Slot::is_running); }
  // Whether a worker has succeeded. Then no new workers are started, and the other workers finish.
  bool is_finishing() const { return is_finishing_; }
  // Whether the job needs this worker. If such a worker fails, the job fails, unless the other
  // workers continue without it.
  bool is_needed(int worker) const {
    const Slot& worker_slot = slot(worker);
    return !worker_slot.is_former_member && (epoch_.number == 0 || worker_slot.is_member);
  }
  bool is_former_member(int worker) const { return slot(worker).is_former_member; }
  bool is_member(int worker) const { return slot(worker).is_member; }

 private:
  struct Slot {
    bool is_running = false;
    bool is_closed = false;          // no worker can be started in the slot
    bool is_leaving = false;         // see slot_leaves()
    bool is_member = false;          // the worker is a member of the current epoch
    bool ran_at_recovery = false;    // the worker ran when continue_from() was called
    bool was_in_last_group = false;  // see RecoveredJob; false after the next epoch is formed
    bool is_awaited = false;         // the worker may still be in the last group or in an older one
    bool wants_rank = false;
    std::int64_t state_epoch = 0;  // `state_epoch` in the worker's last request
    bool has_succeeded = false;
    bool is_ending = false;  // decide() has returned that this worker must be killed
    bool is_former_member = false;
    int failures = 0;  // how many workers of the slot have failed in a row
    TimePoint started_at{};
    std::optional<TimePoint> may_start_from{};  // when a new worker may be started
    std::optional<TimePoint> stopped_at{};      // since when the worker is stopped

    bool may_start(TimePoint now) const {
      return !is_running && !is_closed && may_start_from && now >= *may_start_from;
    }
    // A stopped worker is not ready, because it could not use its rank.
    bool is_ready() const { return wants_rank && !stopped_at && !is_ending; }
    bool may_join() const { return is_ready() && !is_leaving; }
  };

  Slot& slot(int worker) { return slots_.at(static_cast<std::size_t>(worker)); }
  const Slot& slot(int worker) const { return slots_.at(static_cast<std::size_t>(worker)); }
  bool has_running_members() const;
  bool may_form_epoch() const;
  bool state_is_lost() const;
  bool has_newest_state(const Slot& slot) const {
    return slot.is_member && slot.state_epoch > 0 && slot.state_epoch >= state_epoch_;
  }
  bool may_have_rank_0(int worker) const;
  bool members_of_last_group_have_newest_state() const;
  void mark_members_of_last_group();
  int workers_needed() const { return is_finishing_ ? 1 : options_.workers_min; }
  std::vector<int> late_workers() const;
  std::optional<TimePoint> late_notice_time() const;
  Duration cooldown_after(int failures) const;
  void start_workers(Decisions& decisions, TimePoint now);
  void end_workers(Decisions& decisions, TimePoint now);
  void form_epoch(Decisions& decisions, TimePoint now);
  int slot_count() const { return static_cast<int>(slots_.size()); }
  int count_staying_workers() const;  // workers that are neither about to leave nor being killed
  std::vector<int> next_members() const;
  std::vector<int> assign_ranks(std::vector<int> workers_without_rank) const;
  bool change_is_due() const;
  std::string reason_to_end(TimePoint now) const;

  Options options_;
  std::vector<Slot> slots_;
  Epoch epoch_;
  std::int64_t state_epoch_ = 0;
  bool any_worker_had_state_ = false;
  bool is_finishing_ = false;  // a worker has succeeded, so no new worker joins
  // See continue_from(); empty after the next epoch is formed.
  std::optional<RecoveredJob> recovered_job_{};
  // A member of the newest epoch has left that epoch without receiving the state.
  bool newest_epoch_has_no_steps_ = false;
  bool has_announced_change_ = false;  // in the current epoch
  bool worker_failed_early_ = false;   // a worker has failed before the first epoch
  // Since when the members wait for more workers.
  std::optional<TimePoint> shortage_since_{};
  std::optional<TimePoint> waiting_since_{};  // since when some workers wait for others
  bool has_reported_late_workers_ = false;    // in the current epoch
  int resets_ = 0;
};

}  // namespace farandole
