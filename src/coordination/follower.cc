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
  const auto& row = row_of(signature.operation);
  if (join_name_) {
    return Status::fix_call(
        fmt::format("{} `{}`: rank {} has joined and so has no more data; submit nothing until "
                    "join has returned",
                    row.name, name_for_texts(signature.name), rank_));
  }
  if (waiting_.contains(signature.name) || decided_.contains(signature.name)) {
    return Status::fix_call(fmt::format(
        "{} `{}`: this name is still in flight on rank {}; wait for the earlier call, or give this "
        "one another name",
        row.name, name_for_texts(signature.name), rank_));
  }
  if (signature.operation == Operation::kJoin) {
    announcements_.add(Announcement(AnnounceJoin{}));
    join_name_ = std::move(signature.name);
    joined_ = true;
    return {};
  }
  if (const auto id = names_.find(signature))
    announcements_.add(Announcement(AnnounceById{*id}));
  else
    announcements_.add(Announcement(AnnounceInFull{signature}));
  auto name = signature.name;
  waiting_.emplace(std::move(name), std::move(signature));
  return {};
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
  if (announced_by_id) announcements_.add(Announcement(AnnounceAgain{waiting->second}));
  return {};
}

Status Follower::apply(const Issue& item) {
  FARANDOLE_TRY(expect_next(item.generation, item.sequence));
  const auto* signature = names_.find(item.id);
  if (signature == nullptr)
    return Status::stop(
        fmt::format("step {} has the id {}, which stands for nothing", item.sequence, item.id));
  FARANDOLE_TRY_ASSIGN(auto step, step_of(item, *signature));
  waiting_.erase(step.name);
  decided_.insert(step.name);
  decisions_.emplace_back(std::move(step));
  return {};
}

Status Follower::expect_next(std::uint32_t generation, std::uint32_t sequence) {
  const std::uint32_t expected = sequence_next_++;
  if (generation == kGeneration && sequence == expected) return {};
  return Status::stop(fmt::format("it decides number {} of generation {}, expected is {} of {}",
                                  sequence, generation, expected, kGeneration));
}

Result<Step> Follower::step_of(const Issue& item, const Signature& signature) const {
  Step step{item.generation, item.sequence, item.id, signature.name};
  const auto waiting = waiting_.find(signature.name);
  if (waiting != waiting_.end() && waiting->second == signature) return step;
  if (waiting != waiting_.end() || !joined_ || !row_of(signature.operation).runs_joined) {
    return Status::stop(fmt::format("step {} is `{}`, which rank {} has not announced like this",
                                    item.sequence, name_for_texts(signature.name), rank_));
  }
  step.joined = signature;
  return step;
}

Status Follower::apply(const Refuse& item) {
  FARANDOLE_TRY(expect_next(item.generation, item.sequence));
  if (waiting_.erase(item.name) == 1) {
    decided_.insert(item.name);
    decisions_.emplace_back(
        Refusal{item.generation, item.sequence, item.name, Status::fix_call(item.text)});
  } else if (joined_) {
    decisions_.emplace_back(Pass{item.generation, item.sequence, item.name});
  } else {
    return Status::stop(fmt::format("it refuses `{}`, which rank {} has not announced",
                                    name_for_texts(item.name), rank_));
  }
  return {};
}

Status Follower::apply(const ReleaseAll& item) {
  FARANDOLE_TRY(expect_next(item.generation, item.sequence));
  if (!joined_)
    return Status::stop(fmt::format("it releases rank {}, which has not joined", rank_));
  joined_ = false;
  decisions_.emplace_back(Release{item.generation, item.sequence, *join_name_, item.last_rank});
  return {};
}

std::optional<Decision> Follower::next_decision() {
  if (decisions_.empty()) return std::nullopt;
  auto decision = std::move(decisions_.front());
  decisions_.pop_front();
  if (std::holds_alternative<Release>(decision)) join_name_.reset();
  if (!std::holds_alternative<Pass>(decision))
    decided_.erase(std::visit([](const auto& alternative) { return alternative.name; }, decision));
  return decision;
}

}  // namespace farandole
