#include "coordination/plan.h"

#include <algorithm>

#include "base/format.h"

namespace farandole {

Status Plan::apply(const AddBucket& edit) {
  Bucket bucket;
  ContentIdentity identity;
  for (const auto id : edit.ids) {
    const auto* interned = names_.find(id);
    if (interned == nullptr)
      return Status::stop(format_text("it plans the id {}, which has no signature", id));
    if (fragment_of(interned->digest) != nullptr ||
        std::ranges::find(bucket.ids, id) != bucket.ids.end())
      return Status::stop(format_text("it plans the id {} a second time", id));
    bucket.ids.push_back(id);
    bucket.signatures.push_back(interned);
    identity.add(*interned);
  }
  bucket.identity = identity.value();
  auto& fragment = fragments_[edit.fragment];
  fragment.number = edit.fragment;
  for (const auto* interned : bucket.signatures) {
    fragments_by_digest_[interned->digest] = &fragment;
    ++signatures_per_name_[interned->name_digest];
  }
  fragment.buckets.push_back(std::move(bucket));
  return {};
}

Status Plan::apply(const DropFragment& edit) {
  const auto found = fragments_.find(edit.fragment);
  if (found == fragments_.end())
    return Status::stop(
        format_text("it drops the fragment {}, which does not exist", edit.fragment));
  for (const auto& bucket : found->second.buckets) {
    for (const auto* interned : bucket.signatures) {
      fragments_by_digest_.erase(interned->digest);
      const auto name = signatures_per_name_.find(interned->name_digest);
      if (--name->second == 0) signatures_per_name_.erase(name);
    }
  }
  for (auto& [number, fragment] : fragments_)
    std::erase_if(fragment.successors, [&](const Edge& edge) { return edge.to == &found->second; });
  fragments_.erase(found);
  return {};
}

Status Plan::apply(const AddEdge& edit) {
  const auto from = fragments_.find(edit.from);
  const auto* to = find(edit.to);
  if (from == fragments_.end() || to == nullptr)
    return Status::stop(format_text(
        "it says that fragment {} follows {}, but one of them does not exist", edit.to, edit.from));
  auto& known_successors = from->second.successors;
  const auto known_edge = std::ranges::find(known_successors, to, &Edge::to);
  if (known_edge == known_successors.end())
    known_successors.push_back({to, edit.kind});
  else
    known_edge->kind =
        static_cast<EdgeKind>(static_cast<int>(known_edge->kind) | static_cast<int>(edit.kind));
  return {};
}

const Plan::Fragment* Plan::find(std::uint32_t fragment) const {
  const auto found = fragments_.find(fragment);
  return found == fragments_.end() ? nullptr : &found->second;
}

const Plan::Fragment* Plan::fragment_of(std::uint64_t digest) const {
  const auto found = fragments_by_digest_.find(digest);
  return found == fragments_by_digest_.end() ? nullptr : found->second;
}

}  // namespace farandole
