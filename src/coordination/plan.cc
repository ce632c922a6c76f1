#include "coordination/plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace farandole {

Status Plan::apply(const AddBucket& edit) {
  Bucket bucket;
  ContentIdentity identity;
  for (const auto id : edit.ids) {
    const auto* known = names_.find(id);
    if (known == nullptr)
      return Status::stop(fmt::format("it plans the id {}, which has no signature", id));
    if (atom_of(known->digest) != nullptr || std::ranges::find(bucket.ids, id) != bucket.ids.end())
      return Status::stop(fmt::format("it plans the id {} a second time", id));
    bucket.ids.push_back(id);
    bucket.members.push_back(known);
    identity.add(*known);
  }
  bucket.identity = identity.value();
  auto& atom = atoms_[edit.atom];
  atom.number = edit.atom;
  for (const auto* known : bucket.members) {
    atoms_by_digest_[known->digest] = &atom;
    ++names_planned_[known->name_digest];
  }
  atom.buckets.push_back(std::move(bucket));
  return {};
}

Status Plan::apply(const DropAtom& edit) {
  const auto found = atoms_.find(edit.atom);
  if (found == atoms_.end())
    return Status::stop(fmt::format("it drops the atom {}, which does not exist", edit.atom));
  for (const auto& bucket : found->second.buckets) {
    for (const auto* known : bucket.members) {
      atoms_by_digest_.erase(known->digest);
      const auto name = names_planned_.find(known->name_digest);
      if (--name->second == 0) names_planned_.erase(name);
    }
  }
  for (auto& [number, atom] : atoms_)
    std::erase_if(atom.successors, [&](const Succession& one) { return one.to == &found->second; });
  atoms_.erase(found);
  return {};
}

Status Plan::apply(const AddSuccession& edit) {
  const auto from = atoms_.find(edit.from);
  const auto* to = find(edit.to);
  if (from == atoms_.end() || to == nullptr)
    return Status::stop(fmt::format(
        "it says that atom {} follows {}, but one of them does not exist", edit.to, edit.from));
  auto& known = from->second.successors;
  const auto same = std::ranges::find(known, to, &Succession::to);
  if (same == known.end())
    known.push_back({to, edit.where});
  else
    same->where = static_cast<Where>(static_cast<int>(same->where) | static_cast<int>(edit.where));
  return {};
}

const Plan::Atom* Plan::find(std::uint32_t atom) const {
  const auto found = atoms_.find(atom);
  return found == atoms_.end() ? nullptr : &found->second;
}

const Plan::Atom* Plan::atom_of(std::uint64_t digest) const {
  const auto found = atoms_by_digest_.find(digest);
  return found == atoms_by_digest_.end() ? nullptr : found->second;
}

}  // namespace farandole
