#include "referee.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>
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
  if (const auto* refusal = std::get_if<Refusal>(&decision))
    return fmt::format("refusal {} of `{}` ({})", refusal->sequence, name,
                       refusal->status.message());
  if (const auto* pass = std::get_if<Pass>(&decision))
    return fmt::format("pass {} of `{}`", pass->sequence, name);
  const auto& release = std::get<Release>(decision);
  return fmt::format("release {}, rank {} was the last", release.sequence, release.last_rank);
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
  if (std::signbit(odd.prescale)) return "prescale -0";
  return "77";  // in a shape, or a scale
}

// Without what is each member's own.
Decision without_own(Decision decision) {
  if (auto* step = std::get_if<Step>(&decision)) step->joined.reset();
  if (auto* release = std::get_if<Release>(&decision)) release->name.clear();
  if (const auto* refusal = std::get_if<Refusal>(&decision))
    return Pass{refusal->generation, refusal->sequence, refusal->name};
  return decision;
}

}  // namespace

Referee::Referee(const Script& script) : script_(script) {
  for (const auto& members : script.groups) {
    boards_.emplace_back();
    boards_.back().taken.resize(members.size());
  }
  for (int number = 0; number < static_cast<int>(script.calls.size()); ++number) {
    const auto& call = call_of(number);
    if (!call.is_join()) board_of(call.group).undecided[call.common.name].push_back(number);
  }
}

void Referee::blow(std::string problem) {
  if (!problem_) problem_ = std::move(problem);
}

void Referee::submitted(int worker, int number) {
  if (!outcomes_.emplace(std::pair(worker, number), Outcome::kInFlight).second)
    blow(fmt::format("worker {} submits call {} twice", worker, number));
}

void Referee::join_reached(int group, int worker) { board_of(group).joined_last = worker; }

// Calls of one name are decided in the order of the script.
int Referee::decide_next(Board& board, const std::string& name) {
  auto& calls = board.undecided[name];
  if (calls.empty()) return -1;
  const int number = calls.front();
  calls.pop_front();
  return number;
}

// All members see all decisions in one order.
void Referee::decided(int group, int worker, int call, const Decision& decision) {
  auto& board = board_of(group);
  auto& taken = board.taken[static_cast<std::size_t>(*script_.member_of(group, worker))];
  const auto what = without_own(decision);
  if (taken == board.decisions.size()) {
    const bool is_release = std::holds_alternative<Release>(decision);
    const int number = is_release ? call : decide_next(board, name_of(decision));
    if (number < 0) {
      blow(fmt::format("{} of group {}: there is no such call", words(decision), group));
      return;
    }
    check_new(group, call_of(number), decision);
    board.decisions.push_back({what, number});
  }
  const auto& expected = board.decisions[taken];
  if (!(expected.decision == what))
    blow(fmt::format("decision {} of group {}: worker {} sees {}, another saw {}", taken, group,
                     worker, words(decision), words(expected.decision)));
  else if (call >= 0 && call != expected.call)
    blow(fmt::format("worker {}: {} is about call {}, not {}", worker, words(decision),
                     expected.call, call));
  else
    check_own(group, worker, expected.call, decision);
  ++taken;
}

// What nobody has seen before.
void Referee::check_new(int group, const Call& call, const Decision& decision) {
  auto& board = board_of(group);
  const auto [generation, sequence] =
      std::visit([](const auto& any) { return std::pair(any.generation, any.sequence); }, decision);
  if (generation != 1 || sequence != ++board.sequence_last)
    blow(fmt::format("{} of group {}, expected is 1.{}", words(decision), group,
                     board.sequence_last));
  check_all_submitted(call, words(decision));
  if (const auto* step = std::get_if<Step>(&decision)) {
    check_new_step(group, call, *step);
  } else if (const auto* release = std::get_if<Release>(&decision)) {
    check_new_release(group, *release);
  } else {
    ++refusals_;
    if (!call.is_refused())
      blow(fmt::format("{} of group {}: the call was to be done", words(decision), group));
  }
}

// What one member gets of it, according to whether it has joined.
void Referee::check_own(int group, int worker, int number, const Decision& decision) {
  const bool joined = std::ranges::binary_search(call_of(number).joined, worker);
  if (const auto* step = std::get_if<Step>(&decision)) {
    check_joined(worker, number, *step);
  } else if (const auto* refusal = std::get_if<Refusal>(&decision)) {
    const auto [first, is_new] = board_of(group).refusals.emplace(number, *refusal);
    if (!(first->second == *refusal))
      blow(fmt::format("worker {} sees {}, another saw {}", worker, words(decision),
                       words(Decision(first->second))));
    check_refusal(worker, number, *refusal);
  }
  if (!std::holds_alternative<Step>(decision) && joined != std::holds_alternative<Pass>(decision))
    blow(fmt::format("worker {} {} joined and gets {}", worker, joined ? "has" : "has not",
                     words(decision)));
}

void Referee::check_all_submitted(const Call& call, const std::string& what) {
  const auto number = static_cast<int>(&call - script_.calls.data());
  for (const int maker : call.makers)
    if (outcome(maker, number) == Outcome::kNone)
      blow(fmt::format("{} of group {}: worker {} has not submitted it", what, call.group, maker));
  for (const int worker : call.joined)
    if (outcome(worker, call.join) == Outcome::kNone)
      blow(fmt::format("{} of group {}: worker {} has not joined", what, call.group, worker));
}

void Referee::check_new_step(int group, const Call& call, const Step& step) {
  auto& board = board_of(group);
  ++steps_;
  if (!call.joined.empty()) ++steps_joined_;
  if (call.is_refused()) blow(fmt::format("{} of group {} was to be refused", words(step), group));
  const auto [at, is_new] = board.ids.emplace(step.id, call.common);
  if (!is_new && !(at->second == call.common))
    blow(fmt::format("{} of group {}: the id stood for another signature", words(step), group));
}

void Referee::check_new_release(int group, const Release& release) {
  ++releases_;
  if (release.last_rank != board_of(group).joined_last)
    blow(fmt::format("{} of group {}: worker {} was the last to join", words(release), group,
                     board_of(group).joined_last));
}

// Who has joined gets the step with its signature, and nobody else.
void Referee::check_joined(int worker, int number, const Step& step) {
  const auto& call = call_of(number);
  const bool joined = std::ranges::binary_search(call.joined, worker);
  if (joined != step.joined.has_value())
    blow(fmt::format("{}: worker {} {} joined", words(step), worker, joined ? "has" : "has not"));
  else if (joined && !(*step.joined == call.common))
    blow(fmt::format("{}: worker {} gets another signature", words(step), worker));
}

void Referee::check_refusal(int worker, int number, const Refusal& refusal) {
  const auto& call = call_of(number);
  const auto& text = refusal.status.message();
  const auto missing = [&](std::string_view what) {
    if (text.find(what) == std::string::npos)
      blow(fmt::format("worker {}: the refusal does not say `{}`: {}", worker, what, text));
  };
  if (refusal.status.code() != StatusCode::kFixCall) blow("a refusal that is no kFixCall");
  missing(shortened(call.common.name, 100).substr(0, 90));
  if (!call.is_mismatch()) {
    missing(row_of(call.common.operation).name);
    missing(words(call.joined) + (call.joined.size() == 1 ? " has joined" : " have joined"));
  }
  for (const auto& [who, odd] : call.odd) {
    std::vector<int> alike;
    for (const auto& [other, signature] : call.odd)
      if (signature == odd) alike.push_back(other);
    missing(words(alike) + ": ");
    missing(culprit_value(call.common, odd));
  }
}

void Referee::entered(int group, int worker, const Step& step, std::int64_t value) {
  auto& entries = board_of(group).entries[step.sequence];
  if (!entries.emplace(worker, value).second)
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
  std::int64_t expected = 0;
  for (const int maker : call_of(number).makers) expected += Call::value(number, maker);
  if (sum != expected)
    blow(fmt::format("worker {}: call {} gave the sum {}, right is {}", worker, number, sum,
                     expected));
  end(worker, number, Outcome::kDone);
}

void Referee::refused(int worker, int call) { end(worker, call, Outcome::kRefused); }

void Referee::released(int worker, int call) { end(worker, call, Outcome::kDone); }

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
    const auto wanted = call.is_refused() ? Outcome::kRefused : Outcome::kDone;
    for (const int worker : call.makers)
      if (outcome(worker, static_cast<int>(number)) != wanted)
        blow(fmt::format("worker {}: call {} did not come to its end", worker, number));
  }
  for (const auto& board : boards_)
    for (const auto& taken : board.taken)
      if (taken != board.decisions.size()) blow("a decision did not reach every member");
}

}  // namespace farandole::sim
