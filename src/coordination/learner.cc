#include "coordination/learner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/digest.h"
#include "control/limits.h"
#include "coordination/fusion_planner.h"

namespace farandole {
namespace {

// A round is learned when it has occurred this many times in a row.
constexpr int kRoundsToLearn = 3;
// The learner changes the plan when members have reported the same wait in this many raises.
constexpr int kRaisesToLearn = 2;

std::uint64_t digest_of_set(std::vector<std::uint32_t> ids) {
  std::ranges::sort(ids);
  Digest digest;
  for (const auto id : ids) digest.add(id);
  return digest.value();
}

std::uint64_t digest_of_waits(const std::vector<SubmissionContext>& contexts) {
  Digest digest;
  for (const auto& context : contexts) digest.add(context.waits);
  return digest.value();
}

template <class Range, class Value>
bool contains(const Range& range, const Value& value) {
  return std::ranges::find(range, value) != std::ranges::end(range);
}

}  // namespace

void Learner::apply_edit(const auto& item) {
  CHECK(plan_.apply(item).ok(), "an edit of the learner fits the plan");
  edits_.emplace_back(item);
}

void Learner::restart(std::vector<std::uint32_t> quiescent_points) {
  forget_recent_steps();
  quiescent_points_ = std::move(quiescent_points);
}

void Learner::forget_recent_steps() {
  recent_steps_.clear();
  recent_ids_.clear();
  began_at_sync_point_ = false;
  has_repetition_ = false;
  fragment_last_ = 0;
  equal_rounds_ = 0;
}

bool Learner::try_end_superstep(std::uint32_t id, const std::vector<SubmissionContext>& contexts) {
  if (all_passed_quiescent_point(contexts)) {
    end_superstep();
    const auto fragment_last = fragment_last_;
    restart();
    fragment_last_ = fragment_last;
    began_at_sync_point_ = true;
    return true;
  }
  return recent_ids_.contains(id) && end_round();
}

bool Learner::all_passed_quiescent_point(const std::vector<SubmissionContext>& contexts) const {
  if (quiescent_points_.empty()) return false;
  for (std::size_t member = 0; member < contexts.size(); ++member) {
    const auto ahead = contexts[member].quiescent_points - quiescent_points_[member];
    if (static_cast<std::int32_t>(ahead) <= 0) return false;
  }
  return true;
}

void Learner::record(std::uint32_t id, const std::vector<SubmissionContext>& contexts) {
  if (history_bytes() + kHistoryBytesOfStep > kHistoryBytesMax) forget_recent_steps();
  recent_steps_.push_back({id, contexts.front().batch, digest_of_waits(contexts)});
  recent_ids_.insert(id);
  if (quiescent_points_.empty())
    for (const auto& context : contexts) quiescent_points_.push_back(context.quiescent_points);
  for (std::size_t member = 0; member < contexts.size(); ++member) {
    const auto ahead = contexts[member].quiescent_points - quiescent_points_[member];
    if (static_cast<std::int32_t>(ahead) > 0)
      quiescent_points_[member] = contexts[member].quiescent_points;
  }
}

void Learner::end_superstep() {
  if (!began_at_sync_point_ || has_repetition_) {
    fragment_last_ = 0;
    return;
  }
  const bool is_known = recent_steps_consist_of(fragments_of_recent_steps());
  const bool repeats = is_known || record_superstep(digest_of_recent_ids());
  if (repeats && !is_known) learn_recent_steps();
  if (repeats)
    order_and_connect(fragments_of_recent_steps());
  else
    fragment_last_ = 0;
}

// An id has occurred again without a synchronization point, so the steps in between may be a round
// that repeats. Returns true if the round has repeated often enough.
bool Learner::end_round() {
  const auto round_digest = digest_of_recent_ids();
  equal_rounds_ = round_digest == last_round_digest_ ? equal_rounds_ + 1 : 1;
  last_round_digest_ = round_digest;
  has_repetition_ = true;
  fragment_last_ = 0;
  const bool repeats = equal_rounds_ >= kRoundsToLearn;
  if (repeats) {
    if (!recent_steps_consist_of(fragments_of_recent_steps())) learn_recent_steps();
    const auto fragments = fragments_of_recent_steps();
    order_and_connect(fragments);
    // The edge has both kinds, because each member's program decides for itself whether it waits
    // for all its calls before the next round.
    insert_edge(fragment_last_, choose_next(fragment_last_, fragments, EdgeKind::kSameSuperstep),
                EdgeKind::kBoth);
  }
  recent_steps_.clear();
  recent_ids_.clear();
  return repeats;
}

std::uint64_t Learner::digest_of_recent_ids() const {
  Ids ids;
  for (const auto& issued : recent_steps_) ids.push_back(issued.id);
  return digest_of_set(std::move(ids));
}

bool Learner::record_superstep(std::uint64_t digest) {
  if (supersteps_seen_.size() >= kDigestsMax) supersteps_seen_.clear();
  return !supersteps_seen_.insert(digest).second;
}

std::uint32_t Learner::fragment_of(std::uint32_t id) const {
  const auto* interned = names_.find(id);
  const auto* fragment = interned == nullptr ? nullptr : plan_.fragment_of(interned->digest);
  return fragment == nullptr ? 0 : fragment->number;
}

// The fragments of the recent steps, in the order of their first ids; 0 stands for ids in no
// fragment.
Learner::Ids Learner::fragments_of_recent_steps() const {
  Ids fragments;
  for (const auto& issued : recent_steps_)
    if (const auto fragment = fragment_of(issued.id); !contains(fragments, fragment))
      fragments.push_back(fragment);
  return fragments;
}

// Whether these fragments together have exactly the ids of the recent steps.
bool Learner::recent_steps_consist_of(const Ids& fragments) const {
  std::size_t ids = 0;
  for (const auto fragment : fragments) {
    if (fragment == 0) return false;
    for (const auto& bucket : plan_.find(fragment)->buckets) ids += bucket.ids.size();
  }
  return ids == recent_steps_.size();
}

void Learner::learn_recent_steps() {
  for (const auto fragment : fragments_of_recent_steps())
    if (fragment != 0) cut_by_recent_ids(fragment);
  Ids ids;
  std::vector<FusionItem> items;
  for (const auto& [id, batch, waits] : recent_steps_) {
    if (fragment_of(id) != 0) continue;
    const auto& interned = *names_.find(id);
    ids.push_back(id);
    items.push_back({interned.fusion_key, interned.bytes, batch, waits});
  }
  Buckets buckets;
  for (const auto& planned : plan_buckets(items, fusion_bytes_)) {
    auto& bucket = buckets.emplace_back();
    for (const auto index : planned) bucket.push_back(ids[index]);
  }
  if (!buckets.empty()) define(buckets);
}

// Cuts the fragment in two: the part with recent ids, and the rest. The part with recent ids comes
// first, because another fragment may follow it instead of the rest.
void Learner::cut_by_recent_ids(std::uint32_t fragment) {
  Buckets recent_buckets;
  Buckets other_buckets;
  for (const auto& bucket : plan_.find(fragment)->buckets) {
    Ids recent;
    Ids others;
    for (const auto id : bucket.ids) (recent_ids_.contains(id) ? recent : others).push_back(id);
    if (!recent.empty()) recent_buckets.push_back(recent);
    if (!others.empty()) other_buckets.push_back(others);
  }
  if (!other_buckets.empty()) split(fragment, recent_buckets, other_buckets);
}

void Learner::split(std::uint32_t fragment, const Buckets& front_buckets,
                    const Buckets& back_buckets) {
  auto neighbours_before = predecessors(fragment);
  auto neighbours_after = successors(fragment);
  apply_edit(DropFragment{fragment});
  const auto front = define(front_buckets);
  const auto back = define(back_buckets);
  for (auto& [neighbour, kind] : neighbours_before)
    if (neighbour == fragment) neighbour = back;
  for (auto& [neighbour, kind] : neighbours_after)
    if (neighbour == fragment) neighbour = front;
  insert_edge(front, back, EdgeKind::kSameSuperstep);
  connect(neighbours_before, front, back, neighbours_after);
  if (fragment_last_ == fragment) fragment_last_ = back;
}

void Learner::replace(std::uint32_t fragment, const Buckets& buckets,
                      const Neighbours& neighbours_before, const Neighbours& neighbours_after) {
  apply_edit(DropFragment{fragment});
  for (const auto& bucket : buckets) apply_edit(AddBucket{fragment, bucket});
  connect(neighbours_before, fragment, fragment, neighbours_after);
}

void Learner::connect(const Neighbours& neighbours_before, std::uint32_t first, std::uint32_t last,
                      const Neighbours& neighbours_after) {
  for (const auto& [neighbour, kind] : neighbours_before) insert_edge(neighbour, first, kind);
  for (const auto& [neighbour, kind] : neighbours_after) insert_edge(last, neighbour, kind);
}

std::uint32_t Learner::define(const Buckets& buckets) {
  const auto fragment = ++fragment_defined_last_;
  for (const auto& bucket : buckets) apply_edit(AddBucket{fragment, bucket});
  return fragment;
}

Learner::Neighbours Learner::predecessors(std::uint32_t fragment) const {
  Neighbours neighbours;
  for (const auto& [number, from] : plan_.fragments())
    for (const auto& edge : from.successors)
      if (edge.to->number == fragment) neighbours.emplace_back(number, edge.kind);
  std::ranges::sort(neighbours);
  return neighbours;
}

Learner::Neighbours Learner::successors(std::uint32_t fragment) const {
  Neighbours neighbours;
  for (const auto& [to, kind] : plan_.find(fragment)->successors)
    neighbours.emplace_back(to->number, kind);
  return neighbours;
}

void Learner::insert_edge(std::uint32_t from, std::uint32_t to, EdgeKind kind) {
  const auto& known_successors = plan_.find(from)->successors;
  const auto known_edge = std::ranges::find(known_successors, plan_.find(to), &Plan::Edge::to);
  if (known_edge == known_successors.end() ? known_successors.size() < kSuccessorsMax
                                           : !known_edge->includes(kind))
    apply_edit(AddEdge{from, to, kind});
}

// Puts these fragments, which belong to one superstep or round, into an order, and adds an edge
// between each two neighbours in this order. The order in which the fragments have run does not
// matter.
void Learner::order_and_connect(Ids fragments) {
  for (auto kind = EdgeKind::kNextSuperstep; !fragments.empty(); kind = EdgeKind::kSameSuperstep) {
    const auto next_fragment = choose_next(fragment_last_, fragments, kind);
    if (fragment_last_ != 0) insert_edge(fragment_last_, next_fragment, kind);
    fragment_last_ = next_fragment;
    std::erase(fragments, next_fragment);
  }
}

// Chooses which of the fragments comes next: a known successor of `from`. If there is none, chooses
// the oldest fragment that does not follow another of the fragments within a superstep. This keeps
// the number of edges small.
std::uint32_t Learner::choose_next(std::uint32_t from, const Ids& fragments, EdgeKind kind) const {
  if (from != 0)
    for (const auto& edge : plan_.find(from)->successors)
      if (edge.includes(kind) && contains(fragments, edge.to->number)) return edge.to->number;
  auto sorted = fragments;
  std::ranges::sort(sorted);
  const auto follows_another = [&](std::uint32_t fragment) {
    return std::ranges::any_of(sorted, [&](std::uint32_t other) {
      const auto& known_successors = plan_.find(other)->successors;
      const auto known_edge =
          std::ranges::find(known_successors, plan_.find(fragment), &Plan::Edge::to);
      return other != fragment && known_edge != known_successors.end() &&
             known_edge->includes(EdgeKind::kSameSuperstep);
    });
  };
  const auto first = std::ranges::find_if_not(sorted, follows_another);
  return first == sorted.end() ? sorted.front() : *first;
}

std::uint32_t Learner::choose_start(std::uint32_t id, const Ids& announced) {
  Ids fragments = {fragment_of(id)};
  if (fragments.front() == 0) return 0;
  for (const auto announced_id : announced)
    if (const auto fragment = fragment_of(announced_id); fragment != 0)
      fragments.push_back(fragment);
  const auto start = choose_next(fragment_last_, fragments, EdgeKind::kNextSuperstep);
  // If `start` has only followed other fragments inside a superstep, it does not begin this
  // superstep. Then the fragment that begins it is not announced yet, so no plan can start.
  bool may_begin_superstep = true;
  for (const auto& [predecessor, kind] : predecessors(start)) {
    if (predecessor == fragment_last_ && kind != EdgeKind::kSameSuperstep) return start;
    may_begin_superstep &= predecessor == start || kind != EdgeKind::kSameSuperstep;
  }
  if (!may_begin_superstep) return 0;
  if (fragment_last_ != 0) insert_edge(fragment_last_, start, EdgeKind::kNextSuperstep);
  return start;
}

std::uint32_t Learner::add_edge_to_one_of(std::uint32_t from, const Ids& to, EdgeKind kind) {
  Ids fragments;
  for (const auto fragment : to)
    if (plan_.find(fragment) != nullptr && !contains(fragments, fragment))
      fragments.push_back(fragment);
  if (plan_.find(from) == nullptr || fragments.empty()) return 0;
  const auto next_fragment = choose_next(from, fragments, kind);
  insert_edge(from, next_fragment, kind);
  return next_fragment;
}

void Learner::learn_wait(std::uint32_t fragment, std::uint32_t bucket, const Ids& ready) {
  const auto* found_fragment = plan_.find(fragment);
  if (found_fragment == nullptr || bucket >= found_fragment->buckets.size()) return;
  Ids missing;
  for (const auto id : found_fragment->buckets[bucket].ids)
    if (!contains(ready, id)) missing.push_back(id);
  if (raises_by_wait_.size() >= kDigestsMax) raises_by_wait_.clear();
  Digest wait;
  wait.add(digest_of_set(found_fragment->buckets[bucket].ids));
  wait.add(digest_of_set(missing));
  if (++raises_by_wait_[wait.value()] < kRaisesToLearn) return;

  Buckets buckets_before;
  Buckets ready_buckets;
  Buckets late_buckets;
  for (std::size_t index = 0; index < found_fragment->buckets.size(); ++index) {
    const auto& ids = found_fragment->buckets[index].ids;
    Ids ready_ids;
    Ids late_ids;
    for (const auto id : ids)
      (index < bucket || contains(ready, id) ? ready_ids : late_ids).push_back(id);
    if (!ready_ids.empty()) (index < bucket ? buckets_before : ready_buckets).push_back(ready_ids);
    if (!late_ids.empty()) late_buckets.push_back(late_ids);
  }
  if (ready_buckets.empty())
    return buckets_before.empty() ? void() : split(fragment, buckets_before, late_buckets);
  for (const auto* part : {&ready_buckets, &late_buckets})
    buckets_before.insert(buckets_before.end(), part->begin(), part->end());
  replace(fragment, buckets_before, predecessors(fragment), successors(fragment));
}

// Changes the edges to the fragment: it now follows other fragments only inside a superstep. It
// follows the ready fragments, and the fragments that it followed inside a superstep before. It no
// longer follows itself, and the ready fragments follow it only after a synchronization point.
void Learner::learn_order(std::uint32_t fragment, const Ids& ready) {
  const auto* found_fragment = plan_.find(fragment);
  if (found_fragment == nullptr) return;
  Neighbours neighbours_before;
  for (const auto other : ready)
    if (other != fragment && plan_.find(other) != nullptr)
      neighbours_before.emplace_back(other, EdgeKind::kSameSuperstep);
  if (neighbours_before.empty()) return;
  if (raises_by_wait_.size() >= kDigestsMax) raises_by_wait_.clear();
  // The complement of the digest keeps this count separate from the counts of learn_wait().
  if (++raises_by_wait_[~digest_of_set(found_fragment->buckets.front().ids)] % kRaisesToLearn != 0)
    return;
  for (const auto& [neighbour, kind] : predecessors(fragment))
    if (kind != EdgeKind::kNextSuperstep)
      neighbours_before.emplace_back(neighbour, EdgeKind::kSameSuperstep);
  auto neighbours_after = successors(fragment);
  std::erase_if(neighbours_after, [fragment](const auto& edge) { return edge.first == fragment; });
  for (auto& [neighbour, kind] : neighbours_after)
    if (contains(ready, neighbour)) kind = EdgeKind::kNextSuperstep;
  Buckets buckets;
  for (const auto& bucket : found_fragment->buckets) buckets.push_back(bucket.ids);
  replace(fragment, buckets, neighbours_before, neighbours_after);
}

void Learner::forget(std::uint32_t id) {
  if (recent_ids_.contains(id)) restart();
  const auto fragment = fragment_of(id);
  if (fragment == 0) return;
  if (fragment_last_ == fragment) fragment_last_ = 0;
  apply_edit(DropFragment{fragment});
}

}  // namespace farandole
