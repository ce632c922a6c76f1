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
  slots_.resize(slots_.size() + static_cast<std::size_t>(count), {.free_from = TimePoint{}});
}

void Membership::slot_leaves(int worker) {
  slot(worker).is_closed = true;
  slot(worker).is_leaving = slot(worker).runs;
}

// A worker that was about to leave stays, unless there are enough others by now.
void Membership::slot_opened(int worker) {
  slot(worker).is_closed = false;
  if (count_staying() < options_.workers_max) slot(worker).is_leaving = false;
}

void Membership::worker_started(int worker, TimePoint now) {
  Slot& slot = this->slot(worker);
  CHECK(!slot.runs, "a slot has one worker at a time");
  slot = {.runs = true, .is_closed = slot.is_closed, .failures = slot.failures, .started = now};
}

void Membership::continue_from(const Past& past, TimePoint now) {
  past_ = past;
  epoch_ = past.last;
  epoch_.number = std::max(epoch_.number, past.newest_epoch);
  state_epoch_ = past.state_epoch;
  somebody_had_state_ = somebody_had_state_ || state_epoch_ > 0;
  resets_ = static_cast<int>(std::max<std::int64_t>(epoch_.number - 1, 0));
  for (const int worker : past.members) slot(worker).was_in_last = true;
  for (Slot& slot : slots_) {
    slot.was_found = slot.runs;
    slot.is_awaited = slot.runs && epoch_.number > past.last.number;
    if (!slot.runs && !slot.free_from) slot.free_from = now + cooldown_after(0);
  }
  // They may still write to the memory of workers of their host.
  for (const int worker : past.members_of_older) slot(worker).is_awaited = slot(worker).runs;
  mark_members_of_last();
  failed_early_ = false;
}

// Whether the members of the newest group that is known have the newest state, although there was a
// later group. They have it if they were in every later group. This holds for groups of one
// launcher: it forms none without a running member, unless that member's node leaves. Groups with
// successive numbers come from one launcher. The first group of the next launcher may lack these
// members; it changed nothing if a member left it without the state.
bool Membership::members_of_last_have_newest_state() const {
  const std::int64_t later = epoch_.number - past_->last.number;
  const bool is_next_of_other =
      later == kNumbersSkipped + 1 && past_->newest_epoch <= past_->last.number;
  return past_->lost_launcher_was_first || later <= 1 || (is_next_of_other && has_no_steps_);
}

void Membership::mark_members_of_last() {
  if (!past_ || !members_of_last_have_newest_state()) return;
  const bool is_newest = epoch_.number == past_->last.number;
  for (Slot& slot : slots_)
    if (slot.was_in_last && (is_newest || !slot.is_leaving)) slot.is_member = true;
}

void Membership::rank_wanted(int worker, std::int64_t left, std::int64_t state_epoch) {
  Slot& slot = this->slot(worker);
  CHECK(slot.runs, "only a worker that runs can ask");
  if (left > epoch_.number) {  // see continue_from()
    epoch_.number = left;
    has_no_steps_ = false;
    for (Slot& other : slots_) {
      other.is_member = false;
      other.is_awaited = other.was_found;
    }
  }
  if (left == epoch_.number && state_epoch < left) has_no_steps_ = true;
  mark_members_of_last();
  slot.is_member = left > 0 && (left == epoch_.number || slot.is_member);
  slot.wants_rank = true;
  slot.state_epoch = state_epoch;
  somebody_had_state_ = somebody_had_state_ || state_epoch > 0;
}

void Membership::worker_ended(int worker, bool succeeded, TimePoint now) {
  Slot& slot = this->slot(worker);
  CHECK(slot.runs, "a worker ends once");
  const Slot ended = slot;
  slot = {.is_closed = ended.is_closed, .has_succeeded = succeeded, .failures = ended.failures};
  if (ended.is_superfluous) {
    slot.free_from = now;
    return;
  }
  if (succeeded) {
    finishing_ = true;
    return;
  }
  if (epoch_.number == 0) failed_early_ = true;
  // A worker that has run for long has not failed because it was started again too early.
  const Duration cooldown = cooldown_after(std::max(slot.failures - 1, 0));
  const Duration enough = 10 * std::max<Duration>(cooldown, std::chrono::seconds(1));
  if (now - ended.started > std::min<Duration>(enough, options_.cooldown_max)) slot.failures = 0;
  slot.free_from = now + cooldown_after(slot.failures);
  ++slot.failures;
}

Duration Membership::cooldown_after(int failures) const {
  Duration cooldown = options_.cooldown_min;
  for (int i = 0; i < failures && cooldown < options_.cooldown_max; ++i)
    cooldown = cooldown == Duration() ? std::chrono::seconds(1) : 2 * cooldown;
  return std::min<Duration>(cooldown, options_.cooldown_max);
}

void Membership::worker_stopped(int worker, TimePoint now) {
  if (slot(worker).runs && !slot(worker).stopped_at) slot(worker).stopped_at = now;
}

void Membership::worker_continued(int worker) { slot(worker).stopped_at.reset(); }

int Membership::count_staying() const {
  return static_cast<int>(std::ranges::count_if(
      slots_, [](const Slot& slot) { return slot.runs && !slot.is_leaving && !slot.is_ending; }));
}

int Membership::running_members() const {
  return static_cast<int>(
      std::ranges::count_if(slots_, [](const Slot& slot) { return slot.runs && slot.is_member; }));
}

// Whether nobody has to be waited for, except for reaching the minimum. Before the first
// epoch, all workers are waited for; later, only the members of the last one, because a new
// worker may need a long time until it asks.
bool Membership::may_form() const {
  if (epoch_.number == 0)
    return anybody_runs() && std::ranges::all_of(slots_, [](const Slot& slot) {
             return slot.joins() || (!slot.runs && !slot.has_succeeded);
           });
  return running_members() > 0 && std::ranges::none_of(slots_, [](const Slot& slot) {
           return slot.runs && (slot.is_member || slot.is_awaited) && !slot.is_ready();
         });
}

// Whether there is a member that runs, or may be one that has not asked yet.
bool Membership::has_members() const {
  return std::ranges::any_of(slots_, [](const Slot& slot) {
    return slot.runs && (slot.is_member || (slot.is_awaited && !slot.wants_rank));
  });
}

// Whether nobody has the state of the training any more. When may_form(), all members have asked,
// so it is known who has the state.
bool Membership::state_is_lost() const {
  const auto has_it = [this](const Slot& slot) { return slot.runs && has_newest_state(slot); };
  return somebody_had_state_ && may_form() && std::ranges::none_of(slots_, has_it);
}

// Programs that do not use elastic.run() never say that they have the state. Then a member of the
// last epoch has it.
bool Membership::may_have_rank_0(int worker) const {
  const Slot& one = slot(worker);
  return epoch_.number == 0 || (somebody_had_state_ ? has_newest_state(one) : one.is_member);
}

// Returns the workers that others wait for: before the first epoch all that have not asked, and
// later the members that have not.
std::vector<int> Membership::late_workers() const {
  const bool is_first = epoch_.number == 0;
  const auto counts = [is_first](const Slot& slot) {
    return slot.runs && (is_first || slot.is_member);
  };
  std::vector<int> late;
  bool somebody_waits = false;
  for (int worker = 0; worker < slots(); ++worker) {
    if (!counts(slot(worker))) continue;
    somebody_waits = somebody_waits || slot(worker).wants_rank;
    if (!slot(worker).wants_rank) late.push_back(worker);
  }
  return somebody_waits ? late : std::vector<int>();
}

std::optional<TimePoint> Membership::notice_time() const {
  if (!waiting_since_ || has_named_late_ || options_.notice_after.count() == 0) return std::nullopt;
  return *waiting_since_ + options_.notice_after;
}

Membership::Decisions Membership::decide(TimePoint now) {
  Decisions decisions;
  const bool waits_for_workers =
      may_form() && static_cast<int>(next_members().size()) < workers_needed();
  if (!waits_for_workers)
    short_since_.reset();
  else if (!short_since_)
    short_since_ = now;
  if (late_workers().empty())
    waiting_since_.reset();
  else if (!waiting_since_)
    waiting_since_ = now;
  decisions.end = reason_to_end(now);
  if (!decisions.end.empty()) return decisions;
  end_workers(decisions, now);
  start_workers(decisions, now);
  if (may_form() && !waits_for_workers) {
    form(decisions, now);
    return decisions;
  }
  if (const auto at = notice_time(); at && now >= *at) {
    has_named_late_ = true;
    decisions.late = late_workers();
  }
  if (!has_announced_ && change_is_due()) decisions.announces_change = has_announced_ = true;
  return decisions;
}

// Whether a worker wants to join, or a member to leave. Members that nobody can replace stay.
bool Membership::change_is_due() const {
  if (epoch_.number == 0 || finishing_) return false;
  bool somebody_joins = false;
  bool somebody_leaves = false;
  bool a_member_stays = false;
  int staying = 0;
  for (const Slot& slot : slots_) {
    const bool stays = slot.runs && !slot.is_leaving && (slot.is_member || slot.joins());
    somebody_joins = somebody_joins || (slot.joins() && !slot.is_member);
    somebody_leaves = somebody_leaves || (slot.is_leaving && slot.is_member && slot.runs);
    a_member_stays = a_member_stays || (stays && slot.is_member);
    staying += stays ? 1 : 0;
  }
  return somebody_joins || (somebody_leaves && a_member_stays && staying >= workers_needed());
}

void Membership::end_workers(Decisions& decisions, TimePoint now) {
  const bool no_member_is_needed = state_is_lost();
  for (int worker = 0; worker < slots(); ++worker) {
    Slot& slot = this->slot(worker);
    if (!slot.runs || slot.is_ending) continue;
    if (slot.stopped_at && now >= *slot.stopped_at + options_.stopped_max) {
      slot.is_ending = true;
      decisions.stopped.push_back(worker);
    } else if ((slot.is_leaving && !slot.is_member) ||
               (finishing_ && epoch_.number > 0 && (!slot.is_member || no_member_is_needed))) {
      slot.is_ending = slot.is_superfluous = true;
      decisions.superfluous.push_back(worker);
    }
  }
}

void Membership::start_workers(Decisions& decisions, TimePoint now) {
  if (finishing_) return;
  int running = count_staying();
  for (int worker = 0; worker < slots() && running < options_.workers_max; ++worker) {
    Slot& slot = this->slot(worker);
    if (!slot.may_start(now)) continue;
    slot.free_from.reset();
    decisions.starts.push_back(worker);
    ++running;
  }
}

void Membership::form(Decisions& decisions, TimePoint now) {
  if (epoch_.number > 0) ++resets_;
  const int step = 1 + (past_ ? kNumbersSkipped : 0);
  past_.reset();
  has_no_steps_ = false;
  const std::vector<int> members = next_members();
  // As long as no member has been sent the state in the new epoch, these states are equal.
  std::int64_t oldest = 0;
  for (const int worker : members)
    if (const Slot& one = slot(worker); has_newest_state(one))
      oldest = oldest == 0 ? one.state_epoch : std::min(oldest, one.state_epoch);
  epoch_ = {.number = epoch_.number + step, .workers = by_rank(members)};
  state_epoch_ = oldest;
  has_announced_ = has_named_late_ = false;
  for (Slot& slot : slots_)
    slot.is_member = slot.was_found = slot.was_in_last = slot.is_awaited = false;
  for (const int worker : epoch_.workers) {
    slot(worker).is_member = true;
    slot(worker).wants_rank = false;
  }
  end_workers(decisions, now);  // those that leave
  decisions.epoch = epoch_;
}

// Returns the workers that would be in an epoch formed now, in ascending order.
std::vector<int> Membership::next_members() const {
  std::vector<int> members;
  bool has_rank_0 = false;
  for (int worker = 0; worker < slots(); ++worker) {
    if (!slot(worker).joins()) continue;
    members.push_back(worker);
    has_rank_0 = has_rank_0 || may_have_rank_0(worker);
  }
  // If they cannot go on alone, those that leave stay for now: first one that can have rank 0.
  for (const bool for_rank_0 : {true, false}) {
    for (int worker = 0; worker < slots(); ++worker) {
      const bool is_enough =
          for_rank_0 ? has_rank_0 : static_cast<int>(members.size()) >= workers_needed();
      if (is_enough) break;
      const auto place = std::ranges::lower_bound(members, worker);
      const bool is_taken = place != members.end() && *place == worker;
      const bool is_fit = for_rank_0 ? may_have_rank_0(worker) : slot(worker).is_member;
      if (is_taken || !slot(worker).is_leaving || !slot(worker).is_ready() || !is_fit) continue;
      members.insert(place, worker);
      has_rank_0 = has_rank_0 || for_rank_0;
    }
  }
  return members;
}

// A worker that was a member keeps its rank if it can. Rank 0 goes to a worker that has the state.
// Members whose ranks no longer exist get the ranks of members that are gone, and new workers the
// ranks that are left.
std::vector<int> Membership::by_rank(std::vector<int> waiting) const {
  const std::size_t size = waiting.size();
  std::vector<int> ranks(size, -1);
  std::vector<int> moving;
  for (std::size_t rank = 0; rank < epoch_.workers.size(); ++rank) {
    const int worker = epoch_.workers[rank];
    if (!slot(worker).is_member || std::erase(waiting, worker) == 0) continue;
    if (rank < size)
      ranks[rank] = worker;
    else
      moving.push_back(worker);
  }
  const auto fits = [this](int worker) { return worker >= 0 && may_have_rank_0(worker); };
  // If a member needs another rank anyway, it gets rank 0. A new launcher of node 0 may not know
  // the ranks of all members; these are in `waiting`.
  for (std::vector<int>* workers : {&moving, &ranks, &waiting}) {
    if (epoch_.number == 0 || fits(ranks[0])) break;
    const auto found = std::ranges::find_if(*workers, fits);
    if (found != workers->end()) std::swap(ranks[0], *found);
  }
  moving.insert(moving.end(), waiting.begin(), waiting.end());
  std::erase(moving, -1);
  auto next = moving.begin();
  for (int& worker : ranks)
    if (worker < 0) worker = *next++;
  return ranks;
}

std::string Membership::reason_to_end(TimePoint now) const {
  if (failed_early_) return "a worker has failed before all workers had joined the job in init()";
  const auto has_slot = [this](bool Slot::* what) {
    return std::ranges::any_of(slots_, [what](const Slot& slot) { return slot.*what; });
  };
  if (epoch_.number == 0) {
    const bool cannot_form = has_slot(&Slot::has_succeeded) && has_slot(&Slot::wants_rank);
    return cannot_form ? "a worker has ended before all workers had joined the job in init()" : "";
  }
  if ((!has_members() || state_is_lost()) && !finishing_)
    return somebody_had_state_ ? "no worker is left that has the state of the training"
                               : "no worker is left that has the state of the training; a "
                                 "program without hvd.elastic has none";
  if (short_since_ && now >= *short_since_ + options_.shortage_max)
    return format_text("fewer than {} workers could be found within {} s", options_.workers_min,
                       options_.shortage_max.count());
  if (options_.resets_max && resets_ >= *options_.resets_max && may_form() && !finishing_)
    return format_text("the limit of {} resets is reached (--reset-limit)", resets_);
  return {};
}

std::optional<TimePoint> Membership::deadline() const {
  std::optional<TimePoint> first;
  const auto consider = [&first](TimePoint time) { first = first ? std::min(*first, time) : time; };
  const bool may_start_more = count_staying() < options_.workers_max;
  for (const Slot& slot : slots_) {
    if (slot.free_from && !slot.is_closed && !slot.runs && !finishing_ && may_start_more)
      consider(*slot.free_from);
    if (slot.stopped_at && !slot.is_ending) consider(*slot.stopped_at + options_.stopped_max);
  }
  if (short_since_) consider(*short_since_ + options_.shortage_max);
  if (const auto at = notice_time()) consider(*at);
  return first;
}

}  // namespace farandole
