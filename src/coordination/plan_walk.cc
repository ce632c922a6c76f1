#include "coordination/plan_walk.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "control/limits.h"

namespace farandole {

void PlanWalk::go_to(const Plan::Fragment* fragment) {
  fragment_ = fragment;
  bucket_ = 0;
  bucket_checked_ = nullptr;
}

const Plan::Bucket* PlanWalk::next_bucket() {
  if (fragment_ == nullptr) return nullptr;
  if (bucket_ < fragment_->buckets.size()) {
    next_fragment_ = fragment_;
    return is_ready(fragment_->buckets[bucket_]) ? bucket_checked_ : nullptr;
  }
  const auto wanted = wanted_edge_kind();
  for (const auto& edge : fragment_->successors) {
    next_fragment_ = edge.to;
    if (edge.includes(wanted) && is_ready(edge.to->buckets.front())) return bucket_checked_;
  }
  return nullptr;
}

// Returns the kind of edge that leads to the oldest submission in flight.
EdgeKind PlanWalk::wanted_edge_kind() const {
  const auto oldest = in_flight_.first();
  if (oldest == InFlight::kNone) return EdgeKind::kSameSuperstep;
  const auto ahead = in_flight_[oldest].context.quiescent_points - quiescent_points_;
  return static_cast<std::int32_t>(ahead) > 0 ? EdgeKind::kNextSuperstep : EdgeKind::kSameSuperstep;
}

// Looks up each submission only once, because a ready submission stays ready until it is entered. A
// bucket is not ready if the program has waited for a completion between its submissions, because
// such submissions must not be fused. The plan may contain such a bucket if the program did not
// wait there earlier.
bool PlanWalk::is_ready(const Plan::Bucket& bucket) {
  if (bucket_checked_ != &bucket) slots_.clear();
  bucket_checked_ = &bucket;
  while (slots_.size() < bucket.signatures.size()) {
    const auto slot = slot_of(*bucket.signatures[slots_.size()]);
    if (slot == InFlight::kNone) return false;
    const auto first = slots_.empty() ? slot : slots_.front();
    if (in_flight_[slot].context.waits != in_flight_[first].context.waits) return false;
    slots_.push_back(slot);
  }
  return true;
}

void PlanWalk::enter() {
  bucket_ = next_fragment_ == fragment_ && bucket_ < fragment_->buckets.size() ? bucket_ + 1 : 1;
  fragment_ = next_fragment_;
  if (bucket_ == fragment_->buckets.size()) ++fragments_run_;
  bucket_checked_ = nullptr;
}

// Returns the ids in this bucket and in later buckets that have a submission in flight. If the
// program has waited for a completion between these submissions, returns only the ids submitted
// before that wait.
std::vector<std::uint32_t> PlanWalk::queued_ids(const Plan::Fragment& fragment,
                                                std::size_t bucket) const {
  std::vector<std::uint32_t> ids;
  std::uint32_t waits = 0;
  for (auto later_index = bucket; later_index < fragment.buckets.size(); ++later_index) {
    for (std::size_t index = 0; index < fragment.buckets[later_index].ids.size(); ++index) {
      const auto slot = slot_of(*fragment.buckets[later_index].signatures[index]);
      if (slot == InFlight::kNone || ids.size() == kListLengthMax) continue;
      const auto submission_waits = in_flight_[slot].context.waits;
      if (ids.empty() || static_cast<std::int32_t>(submission_waits - waits) < 0) ids.clear();
      if (ids.empty()) waits = submission_waits;
      if (submission_waits == waits) ids.push_back(fragment.buckets[later_index].ids[index]);
    }
  }
  return ids;
}

InFlight::Slot PlanWalk::slot_of(const InternedSignature& interned) const {
  const auto slot = in_flight_.find(interned);
  if (slot == InFlight::kNone || in_flight_[slot].interned->digest == interned.digest) return slot;
  return InFlight::kNone;
}

std::vector<std::uint32_t> PlanWalk::queued_fragments() const {
  std::vector<std::uint32_t> fragments;
  for (auto slot = in_flight_.first(); slot != InFlight::kNone; slot = in_flight_[slot].later) {
    const auto* fragment = plan_.fragment_of(in_flight_[slot].interned->digest);
    if (fragment != nullptr && std::ranges::find(fragments, fragment->number) == fragments.end())
      fragments.push_back(fragment->number);
    if (fragments.size() == kListLengthMax) break;
  }
  return fragments;
}

Raise PlanWalk::raise_for_wait() const {
  CHECK(fragment_ != nullptr, "a member waits only while it follows a plan");
  std::vector<std::pair<const Plan::Fragment*, std::size_t>> expected = {{fragment_, bucket_}};
  if (bucket_ == fragment_->buckets.size()) {
    expected.clear();
    for (const auto& edge : fragment_->successors)
      if (edge.includes(wanted_edge_kind())) expected.emplace_back(edge.to, 0);
  }
  Raise raise;
  raise.cause = Raise::Cause::kBucket;
  for (const auto& [fragment, bucket] : expected) {
    raise.fragment = fragment->number;
    raise.bucket = static_cast<std::uint32_t>(bucket);
    raise.ready = queued_ids(*fragment, bucket);
    if (!raise.ready.empty()) return raise;
  }
  raise.cause = Raise::Cause::kMissingEdge;
  raise.fragment = fragment_->number;
  raise.bucket = static_cast<std::uint32_t>(bucket_);
  raise.ready = queued_fragments();
  raise.edge_kind = wanted_edge_kind();
  return raise;
}

}  // namespace farandole
