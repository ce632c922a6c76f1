// Membership: decides which workers of an elastic job form its group, and when. It is told what
// happens to the workers, and returns decisions: form a group, start a worker, end a worker, or end
// the job. It has no thread, clock, socket or process, so tests and simulations can drive it.
//
// The job has slots for workers, which are numbered from 0; new hosts add slots. Each slot has at
// most one worker at a time, so the functions name workers by their slots. The group of the job is
// formed again and again; each of these groups has a number, its *epoch*, which counts from 1.
//
// An epoch is formed when all members of the last one that still run have asked for a rank in
// the next one. A member asks after its engine has stopped, so nothing writes to the memory of the
// old group any more. A worker that has ended is reaped before worker_ended() is called.
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

// The group with this number. Rank 0 has the state of the training, if any worker has it.
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
    // At most so many workers are started, apart from those that leave.
    int workers_max = std::numeric_limits<int>::max();
    // How many epochs there may be after the first one; empty: any number.
    std::optional<int> resets_max{};
    // A slot whose worker has failed stays empty for a time, which begins with the first value,
    // doubles with each further failure, and is at most the second value. It begins again after a
    // worker has run ten times as long as it.
    std::chrono::seconds cooldown_min{1};
    std::chrono::seconds cooldown_max{60};
    // How long a stopped worker (SIGSTOP) may delay the others before it is ended.
    std::chrono::seconds stopped_max{10};
    // How long the members wait for enough workers.
    std::chrono::seconds shortage_max{600};
    // How long workers wait for others before the user is told which ones are late; 0: never.
    std::chrono::seconds notice_after{10};
  };

  explicit Membership(const Options& options);

  // More slots, in which workers can be started at once.
  void add_slots(int count);

  void worker_started(int worker, TimePoint now);
  // The worker has left this epoch, or none if `left` is 0, and asks for a rank in the next one.
  // `state_epoch` is that in which it got the state of the training. A new worker has not, until it
  // has been sent the state; so it may be a member without having it. Before any step of an epoch,
  // all its members are sent the state.
  void rank_wanted(int worker, std::int64_t left, std::int64_t state_epoch);
  // The worker has ended and was reaped.
  void worker_ended(int worker, bool succeeded, TimePoint now);
  void worker_stopped(int worker, TimePoint now);
  void worker_continued(int worker);
  // From now on, no worker can be started in this slot, because its host is lost.
  void slot_closed(int worker) { slot(worker).is_closed = true; }
  // The host is about to leave: the same, and the worker of the slot shall end at the next change
  // of the members. It stays a member as long as no other worker has the state of the training, or
  // too few would be left.
  void slot_leaves(int worker);
  // Workers can be started in this slot again.
  void slot_opened(int worker);

  // What is known of a job that has begun already, and whose former launcher of node 0 is lost.
  struct Past {
    Epoch last{};                // the newest group whose members are known
    std::vector<int> members{};  // those of them that still run
    // Workers that run and were members of an older group, which they may not have left yet. Their
    // node did not know that the others have gone on without it.
    std::vector<int> members_of_older{};
    std::int64_t state_epoch = 0;         // see state_epoch()
    std::int64_t newest_epoch = 0;        // the newest epoch, if it is a later one
    bool lost_launcher_was_first = true;  // the lost launcher was the first one
  };
  // Continues such a job. All workers that run were started by worker_started(). Call it once,
  // before the first decision. If there was a newer epoch, rank_wanted() reveals it. The next epoch
  // skips two numbers. The group with the first one may have been given to some of its members
  // only. So groups with successive numbers come from the same launcher.
  void continue_from(const Past& past, TimePoint now);
  // No more workers are started, because one has succeeded.
  void finish() { finishing_ = true; }

  struct Decisions {
    std::optional<Epoch> epoch{};    // it is formed now
    std::vector<int> starts{};       // start a new worker in these slots
    std::vector<int> stopped{};      // end these workers, which are stopped (SIGSTOP)
    std::vector<int> superfluous{};  // end these workers, which are not members any more
    std::vector<int> late{};         // tell the user that the others wait for these workers
    bool announces_change = false;   // ask the members to form a group again at their next step
    std::string end{};               // why the job must end; empty: it goes on
  };
  // Each decision is returned once.
  Decisions decide(TimePoint now);
  // When to call decide() again, even if nothing happens.
  std::optional<TimePoint> deadline() const;

  // Somebody has had the state of the training, so a worker without it cannot begin anew.
  void had_state() { somebody_had_state_ = true; }
  // Whether a worker has ever asked with the state of the training.
  bool somebody_had_state() const { return somebody_had_state_; }
  // A member of the current epoch has the newest state if it got it in this epoch or later; 0:
  // nobody had the state when the epoch was formed.
  std::int64_t state_epoch() const { return state_epoch_; }
  const Epoch& epoch() const { return epoch_; }
  // How many workers of the current epoch still run.
  int running_members() const;
  // Whether a worker runs, member or not.
  bool anybody_runs() const { return std::ranges::any_of(slots_, &Slot::runs); }
  // Whether a worker has succeeded. Then no new workers are started; the others finish.
  bool is_finishing() const { return finishing_; }
  // Whether the job needs this worker: its failure is one of the job, unless others go on.
  bool matters(int worker) const {
    const Slot& one = slot(worker);
    return !one.is_superfluous && (epoch_.number == 0 || one.is_member);
  }
  bool is_superfluous(int worker) const { return slot(worker).is_superfluous; }
  bool is_member(int worker) const { return slot(worker).is_member; }

 private:
  struct Slot {
    bool runs = false;
    bool is_closed = false;    // no worker can be started there
    bool is_leaving = false;   // see slot_leaves()
    bool is_member = false;    // of the current epoch
    bool was_found = false;    // it ran when the job was continued
    bool was_in_last = false;  // see Past; until the next epoch is formed
    bool is_awaited = false;   // it may be in the last group or in an older one
    bool wants_rank = false;
    std::int64_t state_epoch = 0;  // as it has said when it asked
    bool has_succeeded = false;
    bool is_ending = false;  // we have decided to end its worker
    bool is_superfluous = false;
    int failures = 0;  // in a row
    TimePoint started{};
    std::optional<TimePoint> free_from{};   // when a new worker may be started
    std::optional<TimePoint> stopped_at{};  // the worker is stopped since then

    bool may_start(TimePoint now) const {
      return !runs && !is_closed && free_from && now >= *free_from;
    }
    // A worker that is stopped could not use its rank.
    bool is_ready() const { return wants_rank && !stopped_at && !is_ending; }
    bool joins() const { return is_ready() && !is_leaving; }
  };

  Slot& slot(int worker) { return slots_.at(static_cast<std::size_t>(worker)); }
  const Slot& slot(int worker) const { return slots_.at(static_cast<std::size_t>(worker)); }
  bool has_members() const;
  bool may_form() const;
  bool state_is_lost() const;
  bool has_newest_state(const Slot& slot) const {
    return slot.is_member && slot.state_epoch > 0 && slot.state_epoch >= state_epoch_;
  }
  bool may_have_rank_0(int worker) const;
  bool members_of_last_have_newest_state() const;
  void mark_members_of_last();
  int workers_needed() const { return finishing_ ? 1 : options_.workers_min; }
  std::vector<int> late_workers() const;
  std::optional<TimePoint> notice_time() const;
  Duration cooldown_after(int failures) const;
  void start_workers(Decisions& decisions, TimePoint now);
  void end_workers(Decisions& decisions, TimePoint now);
  void form(Decisions& decisions, TimePoint now);
  int slots() const { return static_cast<int>(slots_.size()); }
  int count_staying() const;  // the workers that neither leave nor are being ended
  std::vector<int> next_members() const;
  std::vector<int> by_rank(std::vector<int> waiting) const;
  bool change_is_due() const;
  std::string reason_to_end(TimePoint now) const;

  Options options_;
  std::vector<Slot> slots_;
  Epoch epoch_;
  std::int64_t state_epoch_ = 0;
  bool somebody_had_state_ = false;
  bool finishing_ = false;      // a worker has succeeded, so nobody joins any more
  std::optional<Past> past_{};  // see continue_from(); until the next epoch is formed
  bool has_no_steps_ = false;   // a member of the newest epoch was not sent the state in it
  bool has_announced_ = false;  // in this epoch
  bool failed_early_ = false;   // a worker has failed before the first epoch
  // The members wait for more workers since then.
  std::optional<TimePoint> short_since_{};
  std::optional<TimePoint> waiting_since_{};  // some workers wait for others since then
  bool has_named_late_ = false;               // in this epoch
  int resets_ = 0;
};

}  // namespace farandole
