#include "coordination/follower.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/try.h"
#include "coordination/digest.h"
#include "coordination/fusion_planner.h"

namespace farandole {
namespace {

std::string name_for_texts(const Signature& signature) { return shortened(signature.name, 200); }

}  // namespace

Status Follower::submit(Ticket ticket, const KnownSignature& known, const Moment& moment) {
  if (!known.problem.empty() || join_ || in_flight_.find(known) != InFlight::kNone)
    return problem_of_submission(known);
  if (known.signature.operation == Operation::kJoin) {
    join_ = Join{ticket};
    if (mode_ != Mode::kLearn)
      raise(Raise::Cause::kSurprise);
    else if (!stopped_)
      messages_.add(Announcement(AnnounceJoin{}));
    return {};
  }
  const auto slot = in_flight_.add(ticket, known, moment);
  if (mode_ == Mode::kLearn && !stopped_) announce(slot);
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

// Once is enough: the coordinator will stop all, and what is still wrong after the answer is raised
// again.
void Follower::raise(Raise::Cause cause) {
  if (raised_ || stopped_) return;
  raised_ = true;
  messages_.add(Announcement(Raise{generation_, cause, 0, 0, {}}));
}

void Follower::surprised() { raise(Raise::Cause::kSurprise); }

Status Follower::receive(std::span<const std::byte> message) {
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

// An announcement by an id that is being forgotten may have met a coordinator that knew the id no
// more, and such announcements are dropped there: repeat it in full.
Status Follower::apply(const Forget& item) {
  const auto* known = names_.find(item.id);
  if (known == nullptr)
    return Status::stop(fmt::format("it forgets the id {}, which stands for nothing", item.id));
  const auto slot = announced(known->name_digest, known->signature.name);
  names_.forget(item.id);
  if (slot == InFlight::kNone || in_flight_[slot].as_id != item.id) return {};
  auto& submission = in_flight_[slot];
  submission.as_id = 0;
  messages_.add(Announcement(AnnounceAgain{submission.known->signature, submission.moment}));
  return {};
}

// Ours of that name that waits for a decision of the coordinator.
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
        fmt::format("step {} has the id {}, which stands for nothing", item.sequence, item.id));
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
                                    shortened(item.name, 200), rank_));
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
  messages_.add(Announcement(
      Report{generation_, completed_, static_cast<std::uint8_t>(entered_ ? 1 : 0), identity}));
  return {};
}

// What is beyond the prefix was not entered by all, so nobody has written anything for it: it goes
// back to where it was submitted.
Status Follower::apply(const Answer& item) {
  FARANDOLE_TRY(problem_of_answer(item));
  if (entered_ && item.prefix == completed_) {
    entered_ = false;
    withdrawn_ = true;
    for (const auto slot : slots_) take_back(slot);
    if (std::holds_alternative<Release>(decision_)) join_->released = false;
  }
  for (const auto& issued : issued_) {
    if (issued.slot != InFlight::kNone) take_back(issued.slot);
    if (std::holds_alternative<Release>(issued.decision)) join_->released = false;
  }
  issued_.clear();
  generation_ = item.generation;
  sequence_issued_last_ = item.prefix;
  stopped_ = false;
  raised_ = false;
  mode_ = Mode::kLearn;
  for (auto slot = in_flight_.first(); slot != InFlight::kNone; slot = in_flight_[slot].later) {
    in_flight_[slot].announced = false;
    if (!in_flight_[slot].taken) announce(slot);
  }
  if (join_ && !join_->released) messages_.add(Announcement(AnnounceJoin{}));
  return {};
}

Status Follower::problem_of_answer(const Answer& item) const {
  if (!stopped_ || item.generation != generation_ + 1)
    return Status::stop(fmt::format("it begins generation {}, rank {} {} {}", item.generation,
                                    rank_, stopped_ ? "has stopped in" : "is in", generation_));
  const std::uint32_t ahead = item.prefix - completed_;
  if (ahead <= (entered_ ? 1U : 0U)) return {};
  return Status::stop(fmt::format("it says that number {} is entered by all, rank {} has {} {}",
                                  item.prefix, rank_, entered_ ? "entered" : "completed",
                                  completed_ + (entered_ ? 1U : 0U)));
}

void Follower::take_back(InFlight::Slot slot) { in_flight_[slot].taken = false; }

const Decision* Follower::next_decision() {
  if (entered_ || withdrawn_ || stopped_) return nullptr;
  entered_ = mode_ == Mode::kQueue ? enter_from_queue() : enter_issued();
  return entered_ ? &decision_ : nullptr;
}

bool Follower::enter_issued() {
  if (issued_.empty()) return false;
  auto& next = issued_.front();
  decision_ = std::move(next.decision);
  slots_.clear();
  if (next.slot != InFlight::kNone) slots_.push_back(next.slot);
  issued_.pop_front();
  return true;
}

bool Follower::enter_from_queue() {
  const auto head = in_flight_.first();
  if (head == InFlight::kNone) return false;
  begin_step();
  add_to_step(head);
  const auto& first = in_flight_[head];
  std::int64_t bytes = first.known->bytes;
  const bool fuses = first.moment.batch != 0 && options_.fusion_bytes > 0;
  for (auto slot = first.later; fuses && slot != InFlight::kNone;) {
    const auto& next = in_flight_[slot];
    bytes += next.known->bytes;
    if (next.moment.batch != first.moment.batch || bytes > options_.fusion_bytes ||
        !may_share_a_step(first.known->signature, next.known->signature))
      break;
    add_to_step(slot);
    slot = next.later;
  }
  end_step();
  return true;
}

// A step of ours is built in the memory of the last one.
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
  slots_.push_back(slot);
}

void Follower::end_step() {
  auto& step = std::get<Step>(decision_);
  if (slots_.size() == 1) {
    step.identity = in_flight_[slots_.front()].known->digest;
    return;
  }
  Digest digest;
  for (const auto slot : slots_) digest.add(in_flight_[slot].known->digest);
  digest.add(slots_.size());
  step.identity = digest.value();
}

void Follower::completed() {
  CHECK(entered_, "only what was entered is completed");
  entered_ = false;
  ++completed_;
  for (const auto slot : slots_) in_flight_.remove(slot);
  if (std::holds_alternative<Release>(decision_)) join_.reset();
}

bool Follower::take_withdrawal() { return std::exchange(withdrawn_, false); }

}  // namespace farandole
