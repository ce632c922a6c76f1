#include "membership/membership.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/format.h"

namespace farandole {
namespace {

// How many numbers the first epoch after continue_from() skips.
constexpr int kNumbersSkipped = 2;

}  // namespace

Membership::Membership(const Options& options)
    : options_(options), slots_(static_cast<std::size_t>(options.workers)) {
  CHECK(options.workers_min >= 1 && options.workers_min <= options.workers,
        "the minimum is between 1 and the number of slots");
}

void Membership::add_slots(int count) {
  slots_.resize(slots_.size() + static_cast<std::size_t>(count), {.may_start_from = TimePoint{}});
}

void Membership::slot_leaves(int worker) {
  slot(worker).is_closed = true;
  slot(worker).is_leaving = slot(worker).is_running;
}

// If a worker of this slot was about to leave, it stays, unless enough other workers already run.
void Membership::slot_opened(int worker) {
  slot(worker).is_closed = false;
  if (count_staying_workers() < options_.workers_max) slot(worker).is_leaving = false;
}

void Membership::worker_started(int worker, TimePoint now) {
  Slot& slot = this->slot(worker);
  CHECK(!slot.is_running, "a slot has one worker at a time");
  slot = {.is_running = true,
          .is_closed = slot.is_closed,
          .failures = slot.failures,
          .started_at = now};
}

void Membership::continue_from(const RecoveredJob& recovered_job, TimePoint now) {
  recovered_job_ = recovered_job;
  epoch_ = recovered_job.last_epoch;
  epoch_.number = std::max(epoch_.number, recovered_job.newest_epoch);
  state_epoch_ = recovered_job.state_epoch;
  any_worker_had_state_ = any_worker_had_state_ || state_epoch_ > 0;
  resets_ = static_cast<int>(std::max<std::int64_t>(epoch_.number - 1, 0));
  for (const int worker : recovered_job.running_members) slot(worker).was_in_last_group = true;
  for (Slot& slot : slots_) {
    slot.ran_at_recovery = slot.is_running;
    slot.is_awaited = slot.is_running && epoch_.number > recovered_job.last_epoch.number;
    if (!slot.is_running && !slot.may_start_from) slot.may_start_from = now + cooldown_after(0);
  }
  // Members of older groups may still write to the memory of other workers on their host, so the
  // next group must wait for these members.
  for (const int worker : recovered_job.members_of_older_groups)
    slot(worker).is_awaited = slot(worker).is_running;
  mark_members_of_last_group();
  worker_failed_early_ = false;
}

// Whether the members of the last known group have the newest state, although there were later
// groups. They have the newest state if they were members of all later groups, too. A launcher
// leaves no running member out of the next group, unless that member's node leaves. So if one
// launcher has formed all these groups, the members were in all of them. Groups with successive
// numbers come from one launcher. The first group of the next launcher may lack these members. But
// if a worker has left that first group without the state, that group has done no step, so the
// state from before that group is still the newest.
bool Membership::members_of_last_group_have_newest_state() const {
  const std::int64_t later_groups = epoch_.number - recovered_job_->last_epoch.number;
  const bool is_first_of_next_launcher =
      later_groups == kNumbersSkipped + 1 &&
      recovered_job_->newest_epoch <= recovered_job_->last_epoch.number;
  return recovered_job_->lost_launcher_was_first || later_groups <= 1 ||
         (is_first_of_next_launcher && newest_epoch_has_no_steps_);
}

void Membership::mark_members_of_last_group() {
  if (!recovered_job_ || !members_of_last_group_have_newest_state()) return;
  const bool is_newest = epoch_.number == recovered_job_->last_epoch.number;
  for (Slot& slot : slots_)
    if (slot.was_in_last_group && (is_newest || !slot.is_leaving)) slot.is_member = true;
}

void Membership::rank_wanted(int worker, std::int64_t left_epoch, std::int64_t state_epoch) {
  Slot& slot = this->slot(worker);
  CHECK(slot.is_running, "only a worker that runs can ask");
  if (left_epoch > epoch_.number) {  // see continue_from()
    epoch_.number = left_epoch;
    newest_epoch_has_no_steps_ = false;
    for (Slot& other_slot : slots_) {
      other_slot.is_member = false;
      other_slot.is_awaited = other_slot.ran_at_recovery;
    }
  }
  if (left_epoch == epoch_.number && state_epoch < left_epoch) newest_epoch_has_no_steps_ = true;
  mark_members_of_last_group();
  slot.is_member = left_epoch > 0 && (left_epoch == epoch_.number || slot.is_member);
  slot.wants_rank = true;
  slot.state_epoch = state_epoch;
  any_worker_had_state_ = any_worker_had_state_ || state_epoch > 0;
}

void Membership::worker_ended(int worker, bool succeeded, TimePoint now) {
  Slot& slot = this->slot(worker);
  CHECK(slot.is_running, "a worker ends once");
  const Slot ended_slot = slot;
  slot = {.is_closed = ended_slot.is_closed,
          .has_succeeded = succeeded,
          .failures = ended_slot.failures};
  if (ended_slot.is_former_member) {
    slot.may_start_from = now;
    return;
  }
  if (succeeded) {
    is_finishing_ = true;
    return;
  }
  if (epoch_.number == 0) worker_failed_early_ = true;
  // If this worker has run for a long time, an early restart was not the cause of its failure. So
  // the earlier failures in the slot no longer count.
  const Duration cooldown = cooldown_after(std::max(slot.failures - 1, 0));
  const Duration long_run = 10 * std::max<Duration>(cooldown, std::chrono::seconds(1));
  if (now - ended_slot.started_at > std::min<Duration>(long_run, options_.cooldown_max))
    slot.failures = 0;
  slot.may_start_from = now + cooldown_after(slot.failures);
  ++slot.failures;
}

Duration Membership::cooldown_after(int failures) const {
  Duration cooldown = options_.cooldown_min;
  for (int i = 0; i < failures && cooldown < options_.cooldown_max; ++i)
    cooldown = cooldown == Duration() ? std::chrono::seconds(1) : 2 * cooldown;
  return std::min<Duration>(cooldown, options_.cooldown_max);
}

void Membership::worker_stopped(int worker, TimePoint now) {
  if (slot(worker).is_running && !slot(worker).stopped_at) slot(worker).stopped_at = now;
}

void Membership::worker_continued(int worker) { slot(worker).stopped_at.reset(); }

int Membership::count_staying_workers() const {
  return static_cast<int>(std::ranges::count_if(slots_, [](const Slot& slot) {
    return slot.is_running && !slot.is_leaving && !slot.is_ending;
  }));
}

int Membership::count_running_members() const {
  return static_cast<int>(std::ranges::count_if(
      slots_, [](const Slot& slot) { return slot.is_running && slot.is_member; }));
}

// Whether all workers that must ask for a rank have asked. Before the first epoch, these are all
// workers. Later, they are only the members of the last epoch, because a new worker may need a long
// time until it asks. The minimum of workers is not checked here.
bool Membership::may_form_epoch() const {
  if (epoch_.number == 0)
    return any_worker_runs() && std::ranges::all_of(slots_, [](const Slot& slot) {
             return slot.may_join() || (!slot.is_running && !slot.has_succeeded);
           });
  return count_running_members() > 0 && std::ranges::none_of(slots_, [](const Slot& slot) {
           return slot.is_running && (slot.is_member || slot.is_awaited) && !slot.is_ready();
         });
}

// Whether any running worker is a member, or may be a member because it has not asked yet.
bool Membership::has_running_members() const {
  return std::ranges::any_of(slots_, [](const Slot& slot) {
    return slot.is_running && (slot.is_member || (slot.is_awaited && !slot.wants_rank));
  });
}

// Whether no running worker has the state of the training any more. This is known only if
// may_form_epoch() is true. Then all members have asked, and their requests say whether they have
// the state.
bool Membership::state_is_lost() const {
  const auto runs_with_newest_state = [this](const Slot& slot) {
    return slot.is_running && has_newest_state(slot);
  };
  return any_worker_had_state_ && may_form_epoch() &&
         std::ranges::none_of(slots_, runs_with_newest_state);
}

// Programs that do not use elastic.run() never report that they have the state. Then any member of
// the last epoch counts as having the state.
bool Membership::may_have_rank_0(int worker) const {
  const Slot& worker_slot = slot(worker);
  return epoch_.number == 0 ||
         (any_worker_had_state_ ? has_newest_state(worker_slot) : worker_slot.is_member);
}

// Returns the workers that have not asked for a rank, if other workers have asked and wait for
// them. After the first epoch, only members count.
std::vector<int> Membership::late_workers() const {
  const bool is_first_epoch = epoch_.number == 0;
  const auto is_waited_for = [is_first_epoch](const Slot& slot) {
    return slot.is_running && (is_first_epoch || slot.is_member);
  };
  std::vector<int> late;
  bool any_worker_waits = false;
  for (int worker = 0; worker < slot_count(); ++worker) {
    if (!is_waited_for(slot(worker))) continue;
    any_worker_waits = any_worker_waits || slot(worker).wants_rank;
    if (!slot(worker).wants_rank) late.push_back(worker);
  }
  return any_worker_waits ? late : std::vector<int>();
}

std::optional<TimePoint> Membership::late_notice_time() const {
  if (!waiting_since_ || has_reported_late_workers_ || options_.notice_after.count() == 0)
    return std::nullopt;
  return *waiting_since_ + options_.notice_after;
}

Membership::Decisions Membership::decide(TimePoint now) {
  Decisions decisions;
  const bool waits_for_workers =
      may_form_epoch() && static_cast<int>(next_members().size()) < workers_needed();
  if (!waits_for_workers)
    shortage_since_.reset();
  else if (!shortage_since_)
    shortage_since_ = now;
  if (late_workers().empty())
    waiting_since_.reset();
  else if (!waiting_since_)
    waiting_since_ = now;
  decisions.end_reason = reason_to_end(now);
  if (!decisions.end_reason.empty()) return decisions;
  end_workers(decisions, now);
  start_workers(decisions, now);
  if (may_form_epoch() && !waits_for_workers) {
    form_epoch(decisions, now);
    return decisions;
  }
  if (const auto notice_time = late_notice_time(); notice_time && now >= *notice_time) {
    has_reported_late_workers_ = true;
    decisions.late_workers = late_workers();
  }
  if (!has_announced_change_ && change_is_due())
    decisions.announces_change = has_announced_change_ = true;
  return decisions;
}

// Whether a worker wants to join, or a member is about to leave and the others can continue without
// it.
bool Membership::change_is_due() const {
  if (epoch_.number == 0 || is_finishing_) return false;
  bool any_worker_joins = false;
  bool any_member_leaves = false;
  bool any_member_stays = false;
  int staying_workers = 0;
  for (const Slot& slot : slots_) {
    const bool stays = slot.is_running && !slot.is_leaving && (slot.is_member || slot.may_join());
    any_worker_joins = any_worker_joins || (slot.may_join() && !slot.is_member);
    any_member_leaves = any_member_leaves || (slot.is_leaving && slot.is_member && slot.is_running);
    any_member_stays = any_member_stays || (stays && slot.is_member);
    staying_workers += stays ? 1 : 0;
  }
  return any_worker_joins ||
         (any_member_leaves && any_member_stays && staying_workers >= workers_needed());
}

void Membership::end_workers(Decisions& decisions, TimePoint now) {
  const bool no_member_is_needed = state_is_lost();
  for (int worker = 0; worker < slot_count(); ++worker) {
    Slot& slot = this->slot(worker);
    if (!slot.is_running || slot.is_ending) continue;
    if (slot.stopped_at && now >= *slot.stopped_at + options_.stopped_time_max) {
      slot.is_ending = true;
      decisions.stopped_workers.push_back(worker);
    } else if ((slot.is_leaving && !slot.is_member) ||
               (is_finishing_ && epoch_.number > 0 && (!slot.is_member || no_member_is_needed))) {
      slot.is_ending = slot.is_former_member = true;
      decisions.superfluous_workers.push_back(worker);
    }
  }
}

void Membership::start_workers(Decisions& decisions, TimePoint now) {
  if (is_finishing_) return;
  int staying_workers = count_staying_workers();
  for (int worker = 0; worker < slot_count() && staying_workers < options_.workers_max; ++worker) {
    Slot& slot = this->slot(worker);
    if (!slot.may_start(now)) continue;
    slot.may_start_from.reset();
    decisions.slots_to_start.push_back(worker);
    ++staying_workers;
  }
}

void Membership::form_epoch(Decisions& decisions, TimePoint now) {
  if (epoch_.number > 0) ++resets_;
  const int number_increment = 1 + (recovered_job_ ? kNumbersSkipped : 0);
  recovered_job_.reset();
  newest_epoch_has_no_steps_ = false;
  const std::vector<int> members = next_members();
  // Members may have received the newest state in different epochs. Until rank 0 sends the state
  // again, their states are equal, so state_epoch_ becomes the oldest of these epochs.
  std::int64_t oldest_state_epoch = 0;
  for (const int worker : members)
    if (const Slot& worker_slot = slot(worker); has_newest_state(worker_slot))
      oldest_state_epoch = oldest_state_epoch == 0
                               ? worker_slot.state_epoch
                               : std::min(oldest_state_epoch, worker_slot.state_epoch);
  epoch_ = {.number = epoch_.number + number_increment, .workers = assign_ranks(members)};
  state_epoch_ = oldest_state_epoch;
  has_announced_change_ = has_reported_late_workers_ = false;
  for (Slot& slot : slots_)
    slot.is_member = slot.ran_at_recovery = slot.was_in_last_group = slot.is_awaited = false;
  for (const int worker : epoch_.workers) {
    slot(worker).is_member = true;
    slot(worker).wants_rank = false;
  }
  end_workers(decisions, now);  // the workers that leave
  decisions.new_epoch = epoch_;
}

// Returns the workers that would be in an epoch formed now, in ascending order.
std::vector<int> Membership::next_members() const {
  std::vector<int> members;
  bool has_rank_0 = false;
  for (int worker = 0; worker < slot_count(); ++worker) {
    if (!slot(worker).may_join()) continue;
    members.push_back(worker);
    has_rank_0 = has_rank_0 || may_have_rank_0(worker);
  }
  // If these workers cannot continue alone, some leaving workers stay for now. First a leaving
  // worker that can have rank 0 is added, and then as many leaving workers as the minimum requires.
  for (const bool for_rank_0 : {true, false}) {
    for (int worker = 0; worker < slot_count(); ++worker) {
      const bool is_enough =
          for_rank_0 ? has_rank_0 : static_cast<int>(members.size()) >= workers_needed();
      if (is_enough) break;
      const auto position = std::ranges::lower_bound(members, worker);
      const bool is_included = position != members.end() && *position == worker;
      const bool is_suitable = for_rank_0 ? may_have_rank_0(worker) : slot(worker).is_member;
      if (is_included || !slot(worker).is_leaving || !slot(worker).is_ready() || !is_suitable)
        continue;
      members.insert(position, worker);
      has_rank_0 = has_rank_0 || for_rank_0;
    }
  }
  return members;
}

// A worker that was a member keeps its rank if it can. Rank 0 goes to a worker that has the state.
// If a member's rank no longer exists, the member gets the rank of a member that is gone. New
// workers get the remaining ranks.
std::vector<int> Membership::assign_ranks(std::vector<int> workers_without_rank) const {
  const std::size_t size = workers_without_rank.size();
  std::vector<int> ranks(size, -1);
  std::vector<int> members_to_move;
  for (std::size_t rank = 0; rank < epoch_.workers.size(); ++rank) {
    const int worker = epoch_.workers[rank];
    if (!slot(worker).is_member || std::erase(workers_without_rank, worker) == 0) continue;
    if (rank < size)
      ranks[rank] = worker;
    else
      members_to_move.push_back(worker);
  }
  const auto may_get_rank_0 = [this](int worker) { return worker >= 0 && may_have_rank_0(worker); };
  // A member that cannot keep its rank is the first choice for rank 0. A new launcher of node 0 may
  // not know the ranks of all members. Members with unknown ranks are in `workers_without_rank`.
  for (std::vector<int>* workers : {&members_to_move, &ranks, &workers_without_rank}) {
    if (epoch_.number == 0 || may_get_rank_0(ranks[0])) break;
    const auto new_rank_0 = std::ranges::find_if(*workers, may_get_rank_0);
    if (new_rank_0 != workers->end()) std::swap(ranks[0], *new_rank_0);
  }
  members_to_move.insert(members_to_move.end(), workers_without_rank.begin(),
                         workers_without_rank.end());
  std::erase(members_to_move, -1);
  auto next_worker = members_to_move.begin();
  for (int& worker : ranks)
    if (worker < 0) worker = *next_worker++;
  return ranks;
}

std::string Membership::reason_to_end(TimePoint now) const {
  if (worker_failed_early_)
    return "a worker has failed before all workers had joined the job in init()";
  const auto any_slot_has = [this](bool Slot::* property) {
    return std::ranges::any_of(slots_, [property](const Slot& slot) { return slot.*property; });
  };
  if (epoch_.number == 0) {
    const bool cannot_form = any_slot_has(&Slot::has_succeeded) && any_slot_has(&Slot::wants_rank);
    return cannot_form ? "a worker has ended before all workers had joined the job in init()" : "";
  }
  if ((!has_running_members() || state_is_lost()) && !is_finishing_)
    return any_worker_had_state_ ? "no worker is left that has the state of the training"
                                 : "no worker is left that has the state of the training; a "
                                   "program without hvd.elastic has none";
  if (shortage_since_ && now >= *shortage_since_ + options_.shortage_max)
    return format_text("fewer than {} workers could be found within {} s", options_.workers_min,
                       options_.shortage_max.count());
  if (options_.resets_max && resets_ >= *options_.resets_max && may_form_epoch() && !is_finishing_)
    return format_text("the limit of {} resets is reached (--reset-limit)", resets_);
  return {};
}

std::optional<TimePoint> Membership::deadline() const {
  std::optional<TimePoint> earliest;
  const auto consider = [&earliest](TimePoint time) {
    earliest = earliest ? std::min(*earliest, time) : time;
  };
  const bool may_start_more = count_staying_workers() < options_.workers_max;
  for (const Slot& slot : slots_) {
    if (slot.may_start_from && !slot.is_closed && !slot.is_running && !is_finishing_ &&
        may_start_more)
      consider(*slot.may_start_from);
    if (slot.stopped_at && !slot.is_ending) consider(*slot.stopped_at + options_.stopped_time_max);
  }
  if (shortage_since_) consider(*shortage_since_ + options_.shortage_max);
  if (const auto notice_time = late_notice_time()) consider(*notice_time);
  return earliest;
}

}  // namespace farandole
