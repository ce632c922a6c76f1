#include "coordination/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/try.h"
#include "coordination/decision.h"
#include "coordination/refusal_text.h"

namespace farandole {
namespace {

constexpr std::uint32_t kNumberMax = std::numeric_limits<std::uint32_t>::max();

}  // namespace

Coordinator::Coordinator(std::vector<int> ranks, std::size_t names_max)
    : ranks_(std::move(ranks)), names_max_(names_max) {
  CHECK(!ranks_.empty(), "a group has members");
  CHECK(names_max_ >= 1, "the step that is being issued needs an id");
}

Status Coordinator::receive(int from, std::span<const std::byte> message) {
  CHECK(from >= 0 && static_cast<std::size_t>(from) < ranks_.size(), "the sender is a member");
  FARANDOLE_TRY_ASSIGN(const auto items, decode_announcements(message));
  for (const auto& item : items) {
    FARANDOLE_TRY(std::visit(
        [this, from](const auto& alternative) { return apply(from, alternative); }, item));
  }
  return {};
}

Status Coordinator::apply(int from, const AnnounceInFull& item) {
  // Who gets a definition had announced the signature and got its step with it, so nobody can
  // announce in full what has an id.
  if (const auto id = names_.find(item.signature))
    return Status::stop(fmt::format("it announces `{}` in full, which has the id {}",
                                    shortened(item.signature.name, 200), *id));
  return note(from, item.signature, 0);
}

Status Coordinator::apply(int from, const AnnounceById& item) {
  if (item.id > id_defined_last_)
    return Status::stop(fmt::format("it announces the id {}, the last that was given is {}",
                                    item.id, id_defined_last_));
  const auto* signature = names_.find(item.id);
  if (signature == nullptr) return {};  // forgotten meanwhile: the member will announce it in full
  return note(from, *signature, item.id);
}

Status Coordinator::note(int from, const Signature& signature, std::uint32_t id) {
  auto& candidates = pending_[signature.name];
  std::size_t announced = 1;
  for (const auto& candidate : candidates) {
    announced += candidate.members.size();
    if (std::ranges::find(candidate.members, from) != candidate.members.end())
      return Status::stop(
          fmt::format("it announces `{}` a second time", shortened(signature.name, 200)));
  }
  auto same = std::ranges::find(candidates, signature, &Candidate::signature);
  if (same == candidates.end())
    same = candidates.insert(candidates.end(), Candidate{signature, id, {}});
  same->members.push_back(from);
  if (announced == ranks_.size()) {
    const auto complete = pending_.extract(signature.name);
    decide(complete.key(), complete.mapped());
  }
  return {};
}

void Coordinator::decide(const std::string& name, const Candidates& candidates) {
  if (candidates.size() == 1)
    issue(candidates.front());
  else
    refuse(name, candidates);
}

void Coordinator::issue(const Candidate& candidate) {
  const auto id = candidate.id != 0 ? candidate.id : define(candidate.signature);
  names_.touch(id);
  stream_.add(StreamItem(Issue{kGeneration, sequence_next_++, id}));
}

std::uint32_t Coordinator::define(const Signature& signature) {
  if (names_.size() == names_max_) forget(names_.least_recent());
  CHECK(id_defined_last_ != kNumberMax, "a group has fewer than 2^32 − 1 definitions");
  const auto id = ++id_defined_last_;
  names_.define(id, signature);
  stream_.add(StreamItem(Define{id, signature}));
  return id;
}

void Coordinator::forget(std::uint32_t id) {
  // Who announced it by this id will announce it again, in full, on seeing the Forget.
  const auto& signature = *names_.find(id);
  if (const auto pending = pending_.find(signature.name); pending != pending_.end()) {
    std::erase_if(pending->second, [id](const Candidate& candidate) { return candidate.id == id; });
    if (pending->second.empty()) pending_.erase(pending);
  }
  names_.forget(id);
  stream_.add(StreamItem(Forget{id}));
}

void Coordinator::refuse(const std::string& name, const Candidates& candidates) {
  std::vector<Variant> variants;
  for (const auto& candidate : candidates) {
    variants.push_back({candidate.signature, {}});
    for (const auto member : candidate.members)
      variants.back().ranks.push_back(ranks_[static_cast<std::size_t>(member)]);
  }
  stream_.add(StreamItem(Refuse{name, refusal_text(std::move(variants))}));
}

}  // namespace farandole
