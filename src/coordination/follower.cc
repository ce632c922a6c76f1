#include "coordination/follower.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/digest.h"
#include "base/try.h"

namespace farandole {
namespace {

std::string name_for_texts(const Signature& signature) {
  return shortened(signature.name, kNameShownBytesMax);
}

}  // namespace

Follower::Follower(int rank, const AgreementOptions& options)
    : rank_(rank),
      options_(options),
      plan_(names_),
      walk_(plan_, in_flight_, quiet_points_last_),
      grace_(options.grace) {}

Status Follower::submit(Ticket ticket, const KnownSignature& known, const Moment& moment,
                        TimePoint now) {
  if (!known.problem.empty() || join_ || in_flight_.find(known) != InFlight::kNone)
    return problem_of_submission(known);
  grace_.submitted(moment.waits);
  grace_.moved(now);
  waits_last_ = moment.waits;
  if (known.signature.operation == Operation::kJoin) {
    const auto time = std::chrono::nanoseconds(now.time_since_epoch()).count();
    join_ = Join{ticket, {static_cast<std::uint64_t>(time)}};
    if (mode_ != Mode::kLearn)
      raise({});
    else if (!stopped_)
      messages_.add(Announcement(join_->announcement));
    return {};
  }
  const auto slot = in_flight_.add(ticket, known, moment);
  if (mode_ == Mode::kQueue && known.signature.has_fault()) raise({});
  if (mode_ == Mode::kQueue || stopped_) return {};
  if (mode_ == Mode::kPlan && plan_.atom_of(known.digest) != nullptr)
    ++planned_queued_;
  else
    announce(slot);
  return {};
}

Status Follower::problem_of_submission(const KnownSignature& known) const {
  if (!known.problem.empty())
    return Status::fix_call(fmt::format("rank {} cannot submit this: {}", rank_, known.problem));
  const auto& row = row_of(known.signature.operation);
  if (join_) {
    return Status::fix_call(
        fmt::format("{} `{}`: rank {} has joined and so has no more data; submit nothing until "
                    "join has returned",
                    row.name, name_for_texts(known.signature), rank_));
  }
  return Status::fix_call(fmt::format(
      "{} `{}`: this name is still in flight on rank {}; wait for the earlier call, or give this "
      "one another name",
      row.name, name_for_texts(known.signature), rank_));
}

void Follower::announce(InFlight::Slot slot) {
  auto& submission = in_flight_[slot];
  submission.announced = true;
  submission.as_id = names_.id_of(submission.known->digest);
  if (submission.as_id != 0)
    messages_.add(Announcement(AnnounceById{submission.as_id, submission.moment}));
  else
    messages_.add(Announcement(AnnounceInFull{submission.known->signature, submission.moment}));
}

void Follower::announce_what_is_not_planned() {
  planned_queued_ = 0;
  for (auto slot = in_flight_.first(); slot != InFlight::kNone; slot = in_flight_[slot].later) {
    auto& submission = in_flight_[slot];
    if (submission.taken) continue;
    const bool planned = mode_ == Mode::kPlan && plan_.atom_of(submission.known->digest) != nullptr;
    if (planned) {
      submission.announced = false;
      ++planned_queued_;
    } else if (!submission.announced) {
      announce(slot);
    }
  }
}

// Raises once per generation: the coordinator stops all members, and if the problem is still there
// after the answer, this member raises again.
void Follower::raise(Raise item) {
  if (raised_ || stopped_) return;
  raised_ = true;
  item.generation = generation_;
  item.completed = completed_;
  messages_.add(Announcement(std::move(item)));
}

void Follower::look(TimePoint now) {
  if (!is_stuck()) {
    grace_.moved(now);
  } else if (grace_.is_over(now)) {
    raise(walk_.describe_wait());
    grace_.raised(waits_last_);
  }
}

std::optional<TimePoint> Follower::deadline() {
  if (!is_stuck()) return std::nullopt;
  return grace_.end();
}

// True if a planned submission is ready here, but not the predicted one. Members that have entered
// the predicted step wait for the others, and they may be stuck.
bool Follower::is_stuck() {
  return planned_queued_ > 0 && mode_ == Mode::kPlan && !stopped_ && !raised_ && !entered_ &&
         !withdrawn_ && issued_.empty() && walk_.next() == nullptr;
}

Status Follower::receive(std::span<const std::byte> message, TimePoint now) {
  grace_.time_is(now);
  FARANDOLE_TRY_ASSIGN(const auto items, decode_stream(message));
  for (const auto& item : items)
    FARANDOLE_TRY(std::visit([this](const auto& alternative) { return apply(alternative); }, item));
  return {};
}

Status Follower::apply(const Define& item) {
  if (item.id <= id_defined_last_)
    return Status::stop(fmt::format("it gives the id {} to `{}`, after id {} was given", item.id,
                                    name_for_texts(item.signature), id_defined_last_));
  if (const auto id = names_.id_of(digest_of(item.signature)); id != 0)
    return Status::stop(fmt::format("it gives the id {} to `{}`, which has the id {}", item.id,
                                    name_for_texts(item.signature), id));
  names_.define(item.id, item.signature);
  id_defined_last_ = item.id;
  return {};
}

// An announcement by an id that is being forgotten may have reached the coordinator after it forgot
// the id, and then it was dropped: repeat it in full.
Status Follower::apply(const Forget& item) {
  const auto* known = names_.find(item.id);
  if (known == nullptr)
    return Status::stop(fmt::format("it forgets the id {}, which has no signature", item.id));
  if (plan_.atom_of(known->digest) != nullptr)
    return Status::stop(fmt::format("it forgets the id {}, which is planned", item.id));
  const auto slot = announced(known->name_digest, known->signature.name);
  names_.forget(item.id);
  if (slot == InFlight::kNone || in_flight_[slot].as_id != item.id) return {};
  auto& submission = in_flight_[slot];
  submission.as_id = 0;
  messages_.add(Announcement(AnnounceAgain{submission.known->signature, submission.moment}));
  return {};
}

// Our submission of that name that waits for the coordinator's decision.
InFlight::Slot Follower::announced(std::uint64_t name_digest, const std::string& name) const {
  const auto slot = in_flight_.find(name_digest, name);
  if (slot == InFlight::kNone || in_flight_[slot].taken || !in_flight_[slot].announced)
    return InFlight::kNone;
  return slot;
}

Status Follower::apply(const Issue& item) {
  FARANDOLE_TRY(expect_next(item.generation, item.sequence));
  const auto* known = names_.find(item.id);
  if (known == nullptr)
    return Status::stop(
        fmt::format("step {} has the id {}, which has no signature", item.sequence, item.id));
  Step step;
  step.turn = {item.generation, item.sequence};
  step.identity = known->digest;
  const auto slot = announced(known->name_digest, known->signature.name);
  const bool joined = join_ && !join_->released && row_of(known->signature.operation).runs_joined;
  if (slot != InFlight::kNone && in_flight_[slot].known->digest == known->digest) {
    step.tickets.push_back(in_flight_[slot].ticket);
    in_flight_[slot].taken = true;
  } else if (slot == InFlight::kNone && joined) {
    step.joined = known->signature;
  } else {
    return Status::stop(fmt::format("step {} is `{}`, which rank {} has not announced like this",
                                    item.sequence, name_for_texts(known->signature), rank_));
  }
  issued_.push_back({std::move(step), slot});
  return {};
}

Status Follower::expect_next(std::uint32_t generation, std::uint32_t sequence) {
  if (mode_ != Mode::kLearn || stopped_)
    return Status::stop(fmt::format("it decides number {}, which is not its to decide", sequence));
  const std::uint32_t expected = ++sequence_issued_last_;
  if (generation == generation_ && sequence == expected) return {};
  return Status::stop(fmt::format("it decides number {} of generation {}, expected is {} of {}",
                                  sequence, generation, expected, generation_));
}

Status Follower::apply(const Refuse& item) {
  FARANDOLE_TRY(expect_next(item.generation, item.sequence));
  const Turn turn{item.generation, item.sequence};
  const auto slot = announced(digest_of(std::string_view(item.name)), item.name);
  if (slot != InFlight::kNone) {
    in_flight_[slot].taken = true;
    issued_.push_back({Refusal{turn, in_flight_[slot].ticket, Status::fix_call(item.text)}, slot});
  } else if (join_ && !join_->released) {
    issued_.push_back({Pass{turn}, InFlight::kNone});
  } else {
    return Status::stop(fmt::format("it refuses `{}`, which rank {} has not announced",
                                    shortened(item.name, kNameShownBytesMax), rank_));
  }
  return {};
}

Status Follower::apply(const ReleaseAll& item) {
  FARANDOLE_TRY(expect_next(item.generation, item.sequence));
  if (!join_ || join_->released)
    return Status::stop(fmt::format("it releases rank {}, which has not joined", rank_));
  join_->released = true;
  issued_.push_back(
      {Release{{item.generation, item.sequence}, join_->ticket, item.last_rank}, InFlight::kNone});
  return {};
}

Status Follower::apply(const Stop& item) {
  if (stopped_ || item.generation != generation_)
    return Status::stop(fmt::format("it stops generation {}, rank {} {} {}", item.generation, rank_,
                                    stopped_ ? "has stopped in" : "is in", generation_));
  stopped_ = true;
  const auto* const step = std::get_if<Step>(&decision_);
  const std::uint64_t identity = entered_ && step != nullptr ? step->identity : 0;
  messages_.add(Announcement(Report{.generation = generation_,
                                    .completed = completed_,
                                    .entered = static_cast<std::uint8_t>(entered_ ? 1 : 0),
                                    .identity = identity,
                                    .quiet_points = quiet_points_last_,
                                    .atoms_run = walk_.atoms_run()}));
  return {};
}

Status Follower::apply(const Answer& item) {
  FARANDOLE_TRY(problem_of_answer(item));
  if (entered_ && item.prefix == completed_) withdraw();
  for (const auto& issued : issued_) take_back(issued.decision, {&issued.slot, 1});
  issued_.clear();
  generation_ = item.generation;
  sequence_issued_last_ = item.prefix;
  stopped_ = false;
  raised_ = false;
  mode_ = item.atom == 0 ? Mode::kLearn : Mode::kPlan;
  walk_.go_to(plan_.find(item.atom));
  grace_.moved();
  for (auto slot = in_flight_.first(); slot != InFlight::kNone; slot = in_flight_[slot].later)
    in_flight_[slot].announced = false;
  announce_what_is_not_planned();
  if (!join_ || join_->released) return {};
  if (mode_ == Mode::kPlan)
    raise({});
  else
    messages_.add(Announcement(join_->announcement));
  return {};
}

// Not all members have entered what is beyond the prefix, so none has written anything for it: it
// goes back to the submissions in flight.
void Follower::withdraw() {
  entered_ = false;
  withdrawn_ = true;
  take_back(decision_, slots_);
}

void Follower::take_back(const Decision& decision, std::span<const InFlight::Slot> slots) {
  for (const auto slot : slots)
    if (slot != InFlight::kNone) in_flight_[slot].taken = false;
  if (std::holds_alternative<Release>(decision)) join_->released = false;
}

Status Follower::apply(const Follow& item) {
  if (mode_ != Mode::kLearn || stopped_ || item.generation != generation_ ||
      item.sequence != sequence_issued_last_ || plan_.find(item.atom) == nullptr)
    return Status::stop(
        fmt::format("it begins atom {} after number {} of generation {}, rank {} "
                    "expects no plan there",
                    item.atom, item.sequence, item.generation, rank_));
  mode_ = Mode::kPlan;
  walk_.go_to(plan_.find(item.atom));
  walk_.count_from_zero();
  grace_.moved();
  announce_what_is_not_planned();
  return {};
}

template <class Edit>
Status Follower::apply_edit(const Edit& edit) {
  if (mode_ == Mode::kPlan && !stopped_)
    return Status::stop("it changes the plan while that is followed");
  if (mode_ == Mode::kPlan) walk_.go_to(nullptr);
  return plan_.apply(edit);
}

Status Follower::problem_of_answer(const Answer& item) const {
  if (!stopped_ || item.generation != generation_ + 1)
    return Status::stop(fmt::format("it begins generation {}, rank {} {} {}", item.generation,
                                    rank_, stopped_ ? "has stopped in" : "is in", generation_));
  if (item.atom != 0 && plan_.find(item.atom) == nullptr)
    return Status::stop(fmt::format("it goes on with atom {}, which does not exist", item.atom));
  const std::uint32_t ahead = item.prefix - completed_;
  if (ahead <= (entered_ ? 1U : 0U)) return {};
  return Status::stop(fmt::format("it says that number {} is entered by all, rank {} has {} {}",
                                  item.prefix, rank_, entered_ ? "entered" : "completed",
                                  completed_ + (entered_ ? 1U : 0U)));
}

const Decision* Follower::next_decision() {
  if (entered_ || withdrawn_ || stopped_) return nullptr;
  if (mode_ == Mode::kQueue)
    entered_ = enter_from_queue();
  else
    entered_ = enter_issued() || (mode_ == Mode::kPlan && enter_planned());
  return entered_ ? &decision_ : nullptr;
}

bool Follower::enter_issued() {
  if (issued_.empty()) return false;
  auto& next = issued_.front();
  decision_ = std::move(next.decision);
  slots_.clear();
  if (next.slot != InFlight::kNone) note_entered(next.slot);
  issued_.pop_front();
  return true;
}

bool Follower::enter_from_queue() {
  const auto head = in_flight_.first();
  if (head == InFlight::kNone || in_flight_[head].known->signature.has_fault()) return false;
  begin_step();
  add_to_step(head);
  const auto& first = in_flight_[head];
  ContentIdentity identity;
  identity.add(*first.known);
  std::int64_t bytes = first.known->bytes;
  const bool fuses =
      first.moment.batch != 0 && first.known->fusion_key != 0 && options_.fusion_bytes > 0;
  for (auto slot = first.later; fuses && slot != InFlight::kNone; slot = in_flight_[slot].later) {
    const auto& next = in_flight_[slot];
    bytes += next.known->bytes;
    if (next.moment.batch != first.moment.batch || bytes > options_.fusion_bytes ||
        next.known->fusion_key != first.known->fusion_key)
      break;
    add_to_step(slot);
    identity.add(*next.known);
  }
  std::get<Step>(decision_).identity = identity.value();
  return true;
}

bool Follower::enter_planned() {
  const auto* bucket = walk_.next();
  if (bucket == nullptr) return false;
  begin_step();
  for (const auto slot : walk_.slots()) add_to_step(slot);
  std::get<Step>(decision_).identity = bucket->identity;
  planned_queued_ -= slots_.size();
  walk_.enter();
  return true;
}

// Reuses the memory of our last step.
void Follower::begin_step() {
  auto* step = std::get_if<Step>(&decision_);
  if (step == nullptr) step = &decision_.emplace<Step>();
  step->turn = next_turn();
  step->tickets.clear();
  step->joined.reset();
  slots_.clear();
}

void Follower::add_to_step(InFlight::Slot slot) {
  in_flight_[slot].taken = true;
  std::get<Step>(decision_).tickets.push_back(in_flight_[slot].ticket);
  note_entered(slot);
}

void Follower::note_entered(InFlight::Slot slot) {
  slots_.push_back(slot);
  const auto quiet_points = in_flight_[slot].moment.quiet_points;
  if (static_cast<std::int32_t>(quiet_points - quiet_points_last_) > 0)
    quiet_points_last_ = quiet_points;
}

void Follower::completed() {
  CHECK(entered_, "only what was entered is completed");
  if (fusion_watch_ && mode_ == Mode::kQueue) watch_for_fusion();
  entered_ = false;
  ++completed_;
  grace_.moved();
  for (const auto slot : slots_) in_flight_.remove(slot);
  if (std::holds_alternative<Release>(decision_)) join_.reset();
}

void Follower::watch_for_fusion() {
  for (const auto slot : slots_)
    fusion_watch_->add(*in_flight_[slot].known, in_flight_[slot].moment);
  if (fusion_watch_->end_step()) raise({});
}

}  // namespace farandole
