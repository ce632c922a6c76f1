#include "coordination/plan_walk.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace farandole {

void PlanWalk::go_to(const Plan::Atom* atom) {
  atom_ = atom;
  bucket_ = 0;
  forget_what_is_ready();
}

const Plan::Bucket* PlanWalk::next() {
  if (atom_ == nullptr) return nullptr;
  if (bucket_ < atom_->buckets.size()) {
    next_atom_ = atom_;
    return is_ready(atom_->buckets[bucket_]) ? looked_at_ : nullptr;
  }
  const auto here = place();
  for (const auto& succession : atom_->successors) {
    next_atom_ = succession.to;
    if (succession.holds(here) && is_ready(succession.to->buckets.front())) return looked_at_;
  }
  return nullptr;
}

// Where the queued submission is, seen from the one that was entered last.
Where PlanWalk::place() const {
  const auto oldest = in_flight_.first();
  if (oldest == InFlight::kNone) return Where::kInside;
  const auto ahead = in_flight_[oldest].moment.quiet_points - quiet_points_;
  return static_cast<std::int32_t>(ahead) > 0 ? Where::kBehindBorder : Where::kInside;
}

// Looks up each member once, because what is ready stays ready until it is entered. A bucket is not
// ready if the user has waited between its submissions, also if the plan was learned without that
// wait: such submissions are never fused.
bool PlanWalk::is_ready(const Plan::Bucket& bucket) {
  if (looked_at_ != &bucket) slots_.clear();
  looked_at_ = &bucket;
  while (slots_.size() < bucket.members.size()) {
    const auto slot = slot_of(*bucket.members[slots_.size()]);
    if (slot == InFlight::kNone) return false;
    const auto first = slots_.empty() ? slot : slots_.front();
    if (in_flight_[slot].moment.waits != in_flight_[first].moment.waits) return false;
    slots_.push_back(slot);
  }
  return true;
}

void PlanWalk::enter() {
  bucket_ = next_atom_ == atom_ && bucket_ < atom_->buckets.size() ? bucket_ + 1 : 1;
  atom_ = next_atom_;
  if (bucket_ == atom_->buckets.size()) ++atoms_run_;
  forget_what_is_ready();
}

// The queued ids of some buckets of an atom, without those that were submitted after another wait
// of the user.
std::vector<std::uint32_t> PlanWalk::queued_of(const Plan::Atom& atom, std::size_t from,
                                               std::size_t to) const {
  std::vector<std::uint32_t> ids;
  std::uint32_t waits = 0;
  for (; from < to; ++from) {
    for (std::size_t index = 0; index < atom.buckets[from].ids.size(); ++index) {
      const auto slot = slot_of(*atom.buckets[from].members[index]);
      if (slot == InFlight::kNone || ids.size() == kListMax) continue;
      const auto its_waits = in_flight_[slot].moment.waits;
      if (ids.empty() || static_cast<std::int32_t>(its_waits - waits) < 0) ids.clear();
      if (ids.empty()) waits = its_waits;
      if (its_waits == waits) ids.push_back(atom.buckets[from].ids[index]);
    }
  }
  return ids;
}

InFlight::Slot PlanWalk::slot_of(const KnownSignature& known) const {
  const auto slot = in_flight_.find(known);
  if (slot == InFlight::kNone || in_flight_[slot].known->digest == known.digest) return slot;
  return InFlight::kNone;
}

std::vector<std::uint32_t> PlanWalk::queued_atoms() const {
  std::vector<std::uint32_t> atoms;
  for (auto slot = in_flight_.first(); slot != InFlight::kNone; slot = in_flight_[slot].later) {
    const auto* atom = plan_.atom_of(in_flight_[slot].known->digest);
    if (atom != nullptr && std::ranges::find(atoms, atom->number) == atoms.end())
      atoms.push_back(atom->number);
    if (atoms.size() == kListMax) break;
  }
  return atoms;
}

Raise PlanWalk::describe_wait() const {
  CHECK(atom_ != nullptr, "nobody waits for a plan that there is not");
  std::vector<std::pair<const Plan::Atom*, std::size_t>> expected = {{atom_, bucket_}};
  if (bucket_ == atom_->buckets.size()) {
    expected.clear();
    for (const auto& succession : atom_->successors)
      if (succession.holds(place())) expected.emplace_back(succession.to, 0);
  }
  Raise raise;
  raise.cause = Raise::Cause::kBucket;
  for (const bool only_this : {true, false}) {
    for (const auto& [atom, bucket] : expected) {
      raise.atom = atom->number;
      raise.bucket = static_cast<std::uint32_t>(bucket);
      raise.ready = queued_of(*atom, bucket, only_this ? bucket + 1 : atom->buckets.size());
      if (!raise.ready.empty()) return raise;
    }
  }
  raise.cause = Raise::Cause::kSuccession;
  raise.atom = atom_->number;
  raise.bucket = static_cast<std::uint32_t>(bucket_);
  raise.ready = queued_atoms();
  raise.where = place();
  return raise;
}

}  // namespace farandole
