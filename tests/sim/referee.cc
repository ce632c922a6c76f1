#include "referee.h"

#include <fmt/format.h>

#include <string_view>
#include <variant>

namespace farandole::sim {
namespace {

const std::string& name_of(const Decision& decision) {
  return std::visit([](const auto& what) -> const std::string& { return what.name; }, decision);
}

std::string words(const Decision& decision) {
  const auto name = shortened(name_of(decision), 40);
  if (const auto* step = std::get_if<Step>(&decision))
    return fmt::format("step {}.{} `{}` (id {})", step->generation, step->sequence, name, step->id);
  return fmt::format("refusal of `{}` ({})", name, std::get<Refusal>(decision).status.message());
}

// "ranks 0, 2–3", by other means than the code under test.
std::string words(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t index = 0; index < ranks.size(); ++index) {
    const bool after = index > 0 && ranks[index] == ranks[index - 1] + 1;
    const bool before = index + 1 < ranks.size() && ranks[index] == ranks[index + 1] - 1;
    if (after && before) continue;
    text += after ? "–" : (index > 0 ? ", " : " ");
    text += std::to_string(ranks[index]);
  }
  return text;
}

// A word that tells an odd signature from the common one.
std::string culprit_value(const Signature& common, const Signature& odd) {
  if (odd.operation != common.operation) return std::string(row_of(odd.operation).name);
  if (odd.dtype != common.dtype) return std::string(row_of(odd.dtype).name);
  return "77";  // in a shape
}

}  // namespace

Referee::Referee(const Script& script) : script_(script) {
  for (const auto& members : script.groups) {
    boards_.emplace_back();
    boards_.back().taken.resize(members.size());
  }
}

void Referee::blow(std::string problem) {
  if (!problem_) problem_ = std::move(problem);
}

void Referee::submitted(int worker, int number) {
  const auto& call = script_.calls[static_cast<std::size_t>(number)];
  auto& board = boards_[static_cast<std::size_t>(call.group)];
  ++board.submitted[{worker, call.common.name}];
  if (!outcomes_.emplace(std::pair(worker, number), Outcome::kInFlight).second)
    blow(fmt::format("worker {} submits call {} twice", worker, number));
}

void Referee::decided(int group, int worker, int call, const Decision& decision) {
  auto& board = boards_[static_cast<std::size_t>(group)];
  auto& taken = board.taken[static_cast<std::size_t>(*script_.member_of(group, worker))];
  if (taken == board.decisions.size()) {
    check_new(group, call, decision);
    board.decisions.push_back(decision);
  } else if (!(board.decisions[taken] == decision)) {
    blow(fmt::format("decision {} of group {}: worker {} sees {}, another saw {}", taken, group,
                     worker, words(decision), words(board.decisions[taken])));
  }
  ++taken;
  if (const auto* refusal = std::get_if<Refusal>(&decision)) check_refusal(worker, call, *refusal);
}

// What can be said about a decision when its first member sees it.
void Referee::check_new(int group, int number, const Decision& decision) {
  auto& board = boards_[static_cast<std::size_t>(group)];
  const auto& call = script_.calls[static_cast<std::size_t>(number)];
  const auto times = ++board.decided[name_of(decision)];
  for (const int member : script_.groups[static_cast<std::size_t>(group)]) {
    if (board.submitted[{member, name_of(decision)}] < times)
      blow(fmt::format("{} of group {}: worker {} has not submitted it", words(decision), group,
                       member));
  }
  if (call.is_mismatch() != std::holds_alternative<Refusal>(decision))
    blow(fmt::format("{} of group {}: the signatures are {}", words(decision), group,
                     call.is_mismatch() ? "different" : "equal"));
  const auto* step = std::get_if<Step>(&decision);
  if (step == nullptr) {
    ++refusals_;
    return;
  }
  ++steps_;
  if (step->generation != 1 || step->sequence != ++board.sequence_last)
    blow(fmt::format("{} of group {}, expected is 1.{}", words(decision), group,
                     board.sequence_last));
  const auto [at, is_new] = board.ids.emplace(step->id, call.common);
  if (!is_new && !(at->second == call.common))
    blow(fmt::format("{} of group {}: the id stood for another signature", words(decision), group));
}

void Referee::check_refusal(int worker, int number, const Refusal& refusal) {
  const auto& call = script_.calls[static_cast<std::size_t>(number)];
  const auto& text = refusal.status.message();
  const auto missing = [&](std::string_view what) {
    if (text.find(what) == std::string::npos)
      blow(fmt::format("worker {}: the refusal does not say `{}`: {}", worker, what, text));
  };
  if (refusal.status.code() != StatusCode::kFixCall) blow("a refusal that is no kFixCall");
  missing(shortened(call.common.name, 100).substr(0, 90));
  for (const auto& [who, odd] : call.odd) {
    std::vector<int> alike;
    for (const auto& [other, signature] : call.odd)
      if (signature == odd) alike.push_back(other);
    missing(words(alike) + ": ");
    missing(culprit_value(call.common, odd));
  }
}

void Referee::entered(int group, int worker, int call, const Step& step) {
  auto& entries = boards_[static_cast<std::size_t>(group)].entries[step.sequence];
  if (!entries.emplace(worker, Call::value(call, worker)).second)
    blow(fmt::format("worker {} enters {} of group {} twice", worker, words(step), group));
}

int Referee::entries(int group, std::uint32_t sequence) const {
  const auto& entries = boards_[static_cast<std::size_t>(group)].entries;
  const auto found = entries.find(sequence);
  return found == entries.end() ? 0 : static_cast<int>(found->second.size());
}

std::int64_t Referee::sum(int group, std::uint32_t sequence) const {
  std::int64_t sum = 0;
  for (const auto& [worker, value] : boards_[static_cast<std::size_t>(group)].entries.at(sequence))
    sum += value;
  return sum;
}

void Referee::done(int worker, int number, std::int64_t sum) {
  const auto& call = script_.calls[static_cast<std::size_t>(number)];
  std::int64_t expected = 0;
  for (const int member : script_.groups[static_cast<std::size_t>(call.group)])
    expected += Call::value(number, member);
  if (sum != expected)
    blow(fmt::format("worker {}: call {} gave the sum {}, right is {}", worker, number, sum,
                     expected));
  end(worker, number, Outcome::kDone);
}

void Referee::refused(int worker, int call) { end(worker, call, Outcome::kRefused); }

void Referee::lost(int worker, int call) { end(worker, call, Outcome::kLost); }

void Referee::end(int worker, int call, Outcome outcome) {
  auto& current = outcomes_[{worker, call}];
  if (current != Outcome::kInFlight)
    blow(fmt::format("worker {}: call {} ends, which was not in flight", worker, call));
  current = outcome;
}

Outcome Referee::outcome(int worker, int call) const {
  const auto found = outcomes_.find({worker, call});
  return found == outcomes_.end() ? Outcome::kNone : found->second;
}

void Referee::check_end() {
  for (std::size_t number = 0; number < script_.calls.size(); ++number) {
    const auto& call = script_.calls[number];
    const auto wanted = call.is_mismatch() ? Outcome::kRefused : Outcome::kDone;
    for (const int worker : script_.groups[static_cast<std::size_t>(call.group)])
      if (outcome(worker, static_cast<int>(number)) != wanted)
        blow(fmt::format("worker {}: call {} did not come to its end", worker, number));
  }
  for (const auto& board : boards_)
    for (const auto taken : board.taken)
      if (taken != board.decisions.size()) blow("a decision did not reach every member");
}

}  // namespace farandole::sim
