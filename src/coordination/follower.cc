#include "coordination/follower.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "base/try.h"

namespace farandole {
namespace {

std::string name_for_texts(const std::string& name) { return shortened(name, 200); }

}  // namespace

Status Follower::submit(Signature signature) {
  if (const auto problem = problem_of(signature); !problem.empty())
    return Status::fix_call(fmt::format("rank {} cannot submit this: {}", rank_, problem));
  if (waiting_.contains(signature.name) || decided_.contains(signature.name)) {
    return Status::fix_call(fmt::format(
        "{} `{}`: this name is still in flight on rank {}; wait for the earlier call, or give this "
        "one another name",
        row_of(signature.operation).name, name_for_texts(signature.name), rank_));
  }
  announce(signature);
  auto name = signature.name;
  waiting_.emplace(std::move(name), std::move(signature));
  return {};
}

void Follower::announce(const Signature& signature) {
  if (const auto id = names_.find(signature))
    announcements_.add(Announcement(AnnounceById{*id}));
  else
    announcements_.add(Announcement(AnnounceInFull{signature}));
}

Status Follower::receive(std::span<const std::byte> message) {
  FARANDOLE_TRY_ASSIGN(const auto items, decode_stream(message));
  for (const auto& item : items)
    FARANDOLE_TRY(std::visit([this](const auto& alternative) { return apply(alternative); }, item));
  return {};
}

Status Follower::apply(const Define& item) {
  if (item.id <= id_defined_last_)
    return Status::stop(fmt::format("it gives the id {} to `{}`, after id {} was given", item.id,
                                    name_for_texts(item.signature.name), id_defined_last_));
  if (const auto id = names_.find(item.signature))
    return Status::stop(fmt::format("it gives the id {} to `{}`, which has the id {}", item.id,
                                    name_for_texts(item.signature.name), *id));
  names_.define(item.id, item.signature);
  id_defined_last_ = item.id;
  return {};
}

// An announcement by an id that is being forgotten may have met a coordinator that knew the id no
// more, and such announcements are dropped there: repeat it in full.
Status Follower::apply(const Forget& item) {
  const auto* signature = names_.find(item.id);
  if (signature == nullptr)
    return Status::stop(fmt::format("it forgets the id {}, which stands for nothing", item.id));
  const auto waiting = waiting_.find(signature->name);
  const bool announced_by_id = waiting != waiting_.end() && waiting->second == *signature;
  names_.forget(item.id);
  if (announced_by_id) announce(waiting->second);
  return {};
}

Status Follower::apply(const Issue& item) {
  if (item.generation != kGeneration || item.sequence != sequence_next_) {
    return Status::stop(fmt::format("it issues step {} of generation {}, expected is step {} of {}",
                                    item.sequence, item.generation, sequence_next_, kGeneration));
  }
  const auto* signature = names_.find(item.id);
  if (signature == nullptr)
    return Status::stop(
        fmt::format("step {} has the id {}, which stands for nothing", item.sequence, item.id));
  const auto waiting = waiting_.find(signature->name);
  if (waiting == waiting_.end() || waiting->second != *signature) {
    return Status::stop(fmt::format("step {} is `{}`, which rank {} has not announced like this",
                                    item.sequence, name_for_texts(signature->name), rank_));
  }
  ++sequence_next_;
  decided_.insert(signature->name);
  decisions_.emplace_back(Step{item.generation, item.sequence, item.id, signature->name});
  waiting_.erase(waiting);
  return {};
}

Status Follower::apply(const Refuse& item) {
  if (waiting_.erase(item.name) == 0) {
    return Status::stop(fmt::format("it refuses `{}`, which rank {} has not announced",
                                    name_for_texts(item.name), rank_));
  }
  decided_.insert(item.name);
  decisions_.emplace_back(Refusal{item.name, Status::fix_call(item.text)});
  return {};
}

std::optional<Decision> Follower::next_decision() {
  if (decisions_.empty()) return std::nullopt;
  auto decision = std::move(decisions_.front());
  decisions_.pop_front();
  decided_.erase(std::visit([](const auto& alternative) { return alternative.name; }, decision));
  return decision;
}

}  // namespace farandole
