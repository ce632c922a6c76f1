#include "coordination/follower.h"

#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/digest.h"
#include "base/format.h"
#include "base/try.h"

namespace farandole {
namespace {

std::string name_for_message(const Signature& signature) {
  return shortened(signature.name, kNameShownBytesMax);
}

}  // namespace

Follower::Follower(int rank, const AgreementOptions& options)
    : rank_(rank),
      options_(options),
      plan_(names_),
      walk_(plan_, in_flight_, quiescent_points_last_),
      grace_(options.grace_time) {}

void Follower::submit(CallId call_id, const InternedSignature& interned,
                      const SubmissionContext& context, TimePoint now) {
  CHECK(interned.problem.empty(), "the caller has checked the signature");
  CHECK(!join_, "a member that has joined submits nothing");
  CHECK(in_flight_.find(interned) == InFlight::kNone, "a name is in flight only once");
  grace_.record_submission(context.waits);
  grace_.restart(now);
  waits_last_ = context.waits;
  if (interned.signature.operation == Operation::kJoin) {
    join_ = Join{call_id, {calls_since_release_}};
    if (mode_ != Mode::kLearn)
      raise({});
    else if (!stopped_)
      announcements_.emplace_back(join_->announcement);
    return;
  }
  ++calls_since_release_;
  const auto slot = in_flight_.add(call_id, interned, context);
  if (mode_ == Mode::kQueue && interned.signature.has_call_error()) raise({});
  if (mode_ == Mode::kQueue || stopped_) return;
  if (mode_ == Mode::kPlan && plan_.fragment_of(interned.digest) != nullptr)
    ++planned_queued_;
  else
    announce(slot);
}

void Follower::announce(InFlight::Slot slot) {
  auto& submission = in_flight_[slot];
  submission.announced = true;
  submission.announced_id = names_.id_of(submission.interned->digest);
  if (submission.announced_id != 0)
    announcements_.emplace_back(AnnounceById{submission.announced_id, submission.context});
  else
    announcements_.emplace_back(AnnounceInFull{submission.interned->signature, submission.context});
}

std::optional<Announcement> Follower::next_announcement() {
  if (announcements_.empty()) return std::nullopt;
  auto item = std::move(announcements_.front());
  announcements_.pop_front();
  return item;
}

void Follower::announce_unplanned() {
  planned_queued_ = 0;
  for (auto slot = in_flight_.first(); slot != InFlight::kNone; slot = in_flight_[slot].later) {
    auto& submission = in_flight_[slot];
    if (submission.is_in_decision) continue;
    const bool planned =
        mode_ == Mode::kPlan && plan_.fragment_of(submission.interned->digest) != nullptr;
    if (planned) {
      submission.announced = false;
      ++planned_queued_;
    } else if (!submission.announced) {
      announce(slot);
    }
  }
}

// Raises only once per generation, because one raise is enough to stop all members. If the problem
// persists after the coordinator's answer, this member raises again.
void Follower::raise(Raise item) {
  if (raised_ || stopped_) return;
  raised_ = true;
  item.generation = generation_;
  item.completed = completed_;
  announcements_.emplace_back(std::move(item));
}

void Follower::tick(TimePoint now) {
  if (!is_stuck()) {
    grace_.restart(now);
  } else if (grace_.is_over(now)) {
    raise(walk_.raise_for_wait());
    grace_.record_raise(waits_last_);
  }
}

std::optional<TimePoint> Follower::deadline() {
  if (!is_stuck()) return std::nullopt;
  return grace_.end();
}

// True if planned submissions are ready here, but the predicted bucket is not. Other members may
// have entered that bucket and wait for this member, so the group may be stuck.
bool Follower::is_stuck() {
  return planned_queued_ > 0 && mode_ == Mode::kPlan && !stopped_ && !raised_ && !entered_ &&
         !rolled_back_ && issued_decisions_.empty() && walk_.next_bucket() == nullptr;
}

Status Follower::receive(std::span<const std::byte> message, TimePoint now) {
  grace_.set_time(now);
  FARANDOLE_TRY_ASSIGN(const auto items, decode_stream(message));
  for (const auto& item : items)
    FARANDOLE_TRY(std::visit([this](const auto& alternative) { return apply(alternative); }, item));
  return {};
}

Status Follower::apply(const Define& item) {
  if (item.id <= id_defined_last_)
    return Status::stop(format_text("it gives the id {} to `{}`, but the last id is {}", item.id,
                                    name_for_message(item.signature), id_defined_last_));
  if (const auto id = names_.id_of(digest_of(item.signature)); id != 0)
    return Status::stop(format_text("it gives the id {} to `{}`, but this call has the id {}",
                                    item.id, name_for_message(item.signature), id));
  names_.define(item.id, item.signature);
  id_defined_last_ = item.id;
  return {};
}

// The coordinator drops undecided announcements that use a forgotten id, whether they arrive before
// or after it forgets the id. So this member repeats its announcement in full.
Status Follower::apply(const Forget& item) {
  const auto* interned = names_.find(item.id);
  if (interned == nullptr)
    return Status::stop(format_text("it forgets the id {}, which has no signature", item.id));
  if (plan_.fragment_of(interned->digest) != nullptr)
    return Status::stop(format_text("it forgets the id {}, which is planned", item.id));
  const auto slot = find_announced(interned->name_digest, interned->signature.name);
  names_.forget(item.id);
  if (slot == InFlight::kNone || in_flight_[slot].announced_id != item.id) return {};
  auto& submission = in_flight_[slot];
  submission.announced_id = 0;
  announcements_.emplace_back(AnnounceAgain{submission.interned->signature, submission.context});
  return {};
}

// Returns our submission of this name if it waits for the coordinator's decision; otherwise kNone.
InFlight::Slot Follower::find_announced(std::uint64_t name_digest, const std::string& name) const {
  const auto slot = in_flight_.find(name_digest, name);
  if (slot == InFlight::kNone || in_flight_[slot].is_in_decision || !in_flight_[slot].announced)
    return InFlight::kNone;
  return slot;
}

Status Follower::apply(const Issue& item) {
  FARANDOLE_TRY(check_and_count_decision(item.generation, item.sequence));
  const auto* interned = names_.find(item.id);
  if (interned == nullptr)
    return Status::stop(
        format_text("step {} has the id {}, which has no signature", item.sequence, item.id));
  Step step;
  step.step_number = {item.generation, item.sequence};
  step.identity = interned->digest;
  const auto slot = find_announced(interned->name_digest, interned->signature.name);
  const bool joined =
      join_ && !join_->released && row_of(interned->signature.operation).allowed_while_joined;
  if (slot != InFlight::kNone && in_flight_[slot].interned->digest == interned->digest) {
    step.call_ids.push_back(in_flight_[slot].call_id);
    in_flight_[slot].is_in_decision = true;
  } else if (slot == InFlight::kNone && joined) {
    step.signature_if_joined = interned->signature;
  } else {
    return Status::stop(format_text("step {} is `{}`, but rank {} has not announced this signature",
                                    item.sequence, name_for_message(interned->signature), rank_));
  }
  issued_decisions_.push_back({std::move(step), slot});
  return {};
}

Status Follower::check_and_count_decision(std::uint32_t generation, std::uint32_t sequence) {
  if (mode_ != Mode::kLearn || stopped_)
    return Status::stop(format_text("it sends decision {}, but no decision is expected", sequence));
  const std::uint32_t expected = ++sequence_issued_last_;
  if (generation == generation_ && sequence == expected) return {};
  return Status::stop(format_text(
      "it sends decision {} of generation {}, but decision {} of generation {} is expected",
      sequence, generation, expected, generation_));
}

Status Follower::apply(const Reject& item) {
  FARANDOLE_TRY(check_and_count_decision(item.generation, item.sequence));
  const StepNumber step_number{item.generation, item.sequence};
  const auto slot = find_announced(digest_of(std::string_view(item.name)), item.name);
  if (slot != InFlight::kNone) {
    in_flight_[slot].is_in_decision = true;
    issued_decisions_.push_back(
        {Rejection{step_number, in_flight_[slot].call_id, Status::fix_call(item.text)}, slot});
  } else if (join_ && !join_->released) {
    issued_decisions_.push_back({NoOp{step_number}, InFlight::kNone});
  } else {
    return Status::stop(format_text("it rejects `{}`, which rank {} has not announced",
                                    shortened(item.name, kNameShownBytesMax), rank_));
  }
  return {};
}

Status Follower::apply(const ReleaseAll& item) {
  FARANDOLE_TRY(check_and_count_decision(item.generation, item.sequence));
  if (!join_ || join_->released)
    return Status::stop(format_text("it releases rank {}, which has not joined", rank_));
  join_->released = true;
  issued_decisions_.push_back(
      {Release{{item.generation, item.sequence}, join_->call_id, item.last_rank}, InFlight::kNone});
  return {};
}

Status Follower::apply(const Stop& item) {
  if (stopped_ || item.generation != generation_)
    return Status::stop(format_text("it stops generation {}, but rank {} {} generation {}",
                                    item.generation, rank_, stopped_ ? "has stopped in" : "is in",
                                    generation_));
  stopped_ = true;
  const auto* const step = std::get_if<Step>(&decision_);
  const std::uint64_t identity = entered_ && step != nullptr ? step->identity : 0;
  announcements_.emplace_back(Report{.generation = generation_,
                                     .completed = completed_,
                                     .entered = static_cast<std::uint8_t>(entered_ ? 1 : 0),
                                     .identity = identity,
                                     .quiescent_points = quiescent_points_last_,
                                     .fragments_run = walk_.fragments_run()});
  return {};
}

Status Follower::apply(const Answer& item) {
  FARANDOLE_TRY(check_answer(item));
  if (entered_ && item.common_prefix == completed_) roll_back();
  for (const auto& issued : issued_decisions_) take_back(issued.decision, {&issued.slot, 1});
  issued_decisions_.clear();
  generation_ = item.generation;
  sequence_issued_last_ = item.common_prefix;
  stopped_ = false;
  raised_ = false;
  mode_ = item.fragment == 0 ? Mode::kLearn : Mode::kPlan;
  walk_.go_to(plan_.find(item.fragment));
  grace_.restart();
  for (auto slot = in_flight_.first(); slot != InFlight::kNone; slot = in_flight_[slot].later)
    in_flight_[slot].announced = false;
  announce_unplanned();
  if (!join_ || join_->released) return {};
  if (mode_ == Mode::kPlan)
    raise({});
  else
    announcements_.emplace_back(join_->announcement);
  return {};
}

// Takes back the entered decision, because it is beyond the common prefix. Not all members have
// entered it with the same identity, so no member has written anything for it. Its calls may be
// entered again.
void Follower::roll_back() {
  entered_ = false;
  rolled_back_ = true;
  take_back(decision_, slots_);
}

void Follower::take_back(const Decision& decision, std::span<const InFlight::Slot> slots) {
  for (const auto slot : slots)
    if (slot != InFlight::kNone) in_flight_[slot].is_in_decision = false;
  if (std::holds_alternative<Release>(decision)) join_->released = false;
}

Status Follower::apply(const Follow& item) {
  if (mode_ != Mode::kLearn || stopped_ || item.generation != generation_ ||
      item.sequence != sequence_issued_last_ || plan_.find(item.fragment) == nullptr)
    return Status::stop(
        format_text("it begins fragment {} after decision {} of generation {}, but rank {} "
                    "expects no plan there",
                    item.fragment, item.sequence, item.generation, rank_));
  mode_ = Mode::kPlan;
  walk_.go_to(plan_.find(item.fragment));
  walk_.reset_fragments_run();
  grace_.restart();
  announce_unplanned();
  return {};
}

template <class Edit>
Status Follower::apply_edit(const Edit& edit) {
  if (mode_ == Mode::kPlan && !stopped_)
    return Status::stop("it changes the plan while the members follow it");
  if (mode_ == Mode::kPlan) walk_.go_to(nullptr);
  return plan_.apply(edit);
}

Status Follower::check_answer(const Answer& item) const {
  if (!stopped_ || item.generation != generation_ + 1)
    return Status::stop(format_text("it begins generation {}, but rank {} {} generation {}",
                                    item.generation, rank_, stopped_ ? "has stopped in" : "is in",
                                    generation_));
  if (item.fragment != 0 && plan_.find(item.fragment) == nullptr)
    return Status::stop(
        format_text("it continues with fragment {}, which does not exist", item.fragment));
  const std::uint32_t ahead = item.common_prefix - completed_;
  if (ahead <= (entered_ ? 1U : 0U)) return {};
  return Status::stop(format_text(
      "it says that all have entered decision {}, but rank {} has {} {}", item.common_prefix, rank_,
      entered_ ? "entered" : "completed", completed_ + (entered_ ? 1U : 0U)));
}

const Decision* Follower::next_decision() {
  if (entered_ || rolled_back_ || stopped_) return nullptr;
  if (mode_ == Mode::kQueue)
    entered_ = try_enter_from_queue();
  else
    entered_ = try_enter_issued() || (mode_ == Mode::kPlan && try_enter_planned());
  return entered_ ? &decision_ : nullptr;
}

bool Follower::try_enter_issued() {
  if (issued_decisions_.empty()) return false;
  auto& next_issued = issued_decisions_.front();
  decision_ = std::move(next_issued.decision);
  slots_.clear();
  if (next_issued.slot != InFlight::kNone) record_entry(next_issued.slot);
  issued_decisions_.pop_front();
  return true;
}

bool Follower::try_enter_from_queue() {
  const auto head = in_flight_.first();
  if (head == InFlight::kNone || in_flight_[head].interned->signature.has_call_error())
    return false;
  begin_step();
  add_to_step(head);
  const auto& first_call = in_flight_[head];
  ContentIdentity identity;
  identity.add(*first_call.interned);
  std::int64_t bytes = first_call.interned->bytes;
  const bool fuses = first_call.context.batch != 0 && first_call.interned->fusion_key != 0 &&
                     options_.fusion_bytes > 0;
  for (auto slot = first_call.later; fuses && slot != InFlight::kNone;
       slot = in_flight_[slot].later) {
    const auto& next_call = in_flight_[slot];
    bytes += next_call.interned->bytes;
    if (next_call.context.batch != first_call.context.batch || bytes > options_.fusion_bytes ||
        next_call.interned->fusion_key != first_call.interned->fusion_key)
      break;
    add_to_step(slot);
    identity.add(*next_call.interned);
  }
  std::get<Step>(decision_).identity = identity_with_unnamed_numbers(identity.value());
  return true;
}

bool Follower::try_enter_planned() {
  const auto* bucket = walk_.next_bucket();
  if (bucket == nullptr) return false;
  begin_step();
  for (const auto slot : walk_.slots()) add_to_step(slot);
  std::get<Step>(decision_).identity = identity_with_unnamed_numbers(bucket->identity);
  planned_queued_ -= slots_.size();
  walk_.enter();
  return true;
}

// Reuses the memory of the last step.
void Follower::begin_step() {
  auto* step = std::get_if<Step>(&decision_);
  if (step == nullptr) step = &decision_.emplace<Step>();
  step->step_number = next_step_number();
  step->call_ids.clear();
  step->signature_if_joined.reset();
  slots_.clear();
}

void Follower::add_to_step(InFlight::Slot slot) {
  in_flight_[slot].is_in_decision = true;
  std::get<Step>(decision_).call_ids.push_back(in_flight_[slot].call_id);
  record_entry(slot);
}

void Follower::record_entry(InFlight::Slot slot) {
  slots_.push_back(slot);
  const auto quiescent_points = in_flight_[slot].context.quiescent_points;
  if (static_cast<std::int32_t>(quiescent_points - quiescent_points_last_) > 0)
    quiescent_points_last_ = quiescent_points;
}

// If one automatic name stands for different calls on different members, the identities of these
// calls must differ, so that no member writes a result. In learn mode, the coordinator compares the
// numbers.
std::uint64_t Follower::identity_with_unnamed_numbers(std::uint64_t identity) const {
  Digest numbers;
  bool any_unnamed = false;
  for (const auto slot : slots_) {
    const auto number = in_flight_[slot].context.unnamed_number;
    if (number == 0) continue;
    numbers.add(number);
    any_unnamed = true;
  }
  if (!any_unnamed) return identity;
  numbers.add(identity);
  return numbers.value();
}

void Follower::record_completion() {
  CHECK(entered_, "only an entered decision is completed");
  if (fusion_watch_ && mode_ == Mode::kQueue) watch_for_fusion();
  entered_ = false;
  ++completed_;
  grace_.restart();
  for (const auto slot : slots_) in_flight_.remove(slot);
  if (!std::holds_alternative<Release>(decision_)) return;
  join_.reset();
  calls_since_release_ = 0;
}

void Follower::watch_for_fusion() {
  for (const auto slot : slots_)
    fusion_watch_->add(*in_flight_[slot].interned, in_flight_[slot].context);
  if (fusion_watch_->end_step()) raise({});
}

}  // namespace farandole
