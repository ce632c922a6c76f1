#include "explorer.h"

#include <algorithm>
#include <deque>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fingerprint_set.h"
#include "machine.h"

namespace farandole::model {
namespace {

class Search {
 public:
  Search(const Scenario& scenario, const Limits& limits)
      : limits_(limits), machine_(scenario, limits.partial_store_order) {}

  Finding run() {
    visit(machine_.start_state(), kNoParent, {});
    while (!frontier_.empty() && finding_.verdict == Verdict::kHolds) {
      if (seen_.size() >= limits_.states_max) {
        finding_.verdict = Verdict::kBounded;
        finding_.text = "stopped at the bound on states";
        break;
      }
      expand(take());
    }
    finding_.states = seen_.size();
    if (limits_.end_must_be_reachable && finding_.verdict == Verdict::kHolds) check_end_reachable();
    return finding_;
  }

 private:
  static constexpr std::uint32_t kNoParent = ~std::uint32_t{0};
  struct Origin {
    std::uint32_t parent;
    Choice choice;
  };
  struct PendingState {
    MachineState state;
    std::uint32_t number;
  };

  PendingState take() {
    const PendingState next = limits_.depth_first ? frontier_.back() : frontier_.front();
    if (limits_.depth_first)
      frontier_.pop_back();
    else
      frontier_.pop_front();
    return next;
  }

  void visit(const MachineState& state, std::uint32_t parent, const Choice& choice) {
    const std::uint64_t fingerprint = state.fingerprint();
    const auto number = static_cast<std::uint32_t>(origins_.size());
    if (limits_.end_must_be_reachable) {
      const auto known = numbers_.try_emplace(fingerprint, number).first;
      const bool dies = choice.kind == Choice::Kind::kDie;  // the end must not need a death
      if (parent != kNoParent && !dies) reverse_edges_.emplace_back(known->second, parent);
    }
    if (!seen_.insert(fingerprint)) return;
    frontier_.push_back({state, number});
    origins_.push_back({parent, choice});
  }

  // Checks that every state has a way to the end: goes backwards from the states in which all
  // threads have finished.
  void check_end_reachable() {
    std::sort(reverse_edges_.begin(), reverse_edges_.end());
    std::vector<bool> reaches_end(origins_.size(), false);
    for (const std::uint32_t end : finished_states_) reaches_end[end] = true;
    while (!finished_states_.empty()) {
      const std::uint32_t to = finished_states_.back();
      finished_states_.pop_back();
      auto edge = std::lower_bound(reverse_edges_.begin(), reverse_edges_.end(), std::pair(to, 0U));
      for (; edge != reverse_edges_.end() && edge->first == to; ++edge) {
        if (reaches_end[edge->second]) continue;
        reaches_end[edge->second] = true;
        finished_states_.push_back(edge->second);
      }
    }
    const auto stuck_state = std::find(reaches_end.begin(), reaches_end.end(), false);
    if (stuck_state != reaches_end.end())
      record(Verdict::kLivelock, "the end cannot be reached any more",
             static_cast<std::uint32_t>(stuck_state - reaches_end.begin()), nullptr);
  }

  void expand(const PendingState& from) {
    machine_.list_choices(from.state, choices_);
    const bool moves = std::any_of(choices_.begin(), choices_.end(), [](const Choice& choice) {
      return choice.kind != Choice::Kind::kDie;
    });
    const bool ended = machine_.all_finished(from.state);
    if (ended && limits_.end_must_be_reachable) finished_states_.push_back(from.number);
    if (!moves && !ended) {
      record(Verdict::kDeadlock, machine_.describe_stuck(from.state), from.number, nullptr);
      return;
    }
    for (const Choice& choice : choices_) {
      ++finding_.transitions;
      MachineState next = from.state;
      if (const auto broken = machine_.apply(choice, next)) {
        record(Verdict::kViolation, *broken, from.number, &choice);
        return;
      }
      visit(next, from.number, choice);
    }
  }

  void record(Verdict verdict, std::string text, std::uint32_t at, const Choice* last) {
    finding_.verdict = verdict;
    finding_.text = std::move(text);
    std::vector<Choice> path;
    if (last != nullptr) path.push_back(*last);
    for (; origins_[at].parent != kNoParent; at = origins_[at].parent)
      path.push_back(origins_[at].choice);
    MachineState state = machine_.start_state();
    for (auto choice = path.rbegin(); choice != path.rend(); ++choice) {
      finding_.trace += machine_.describe(*choice, state) + "\n";
      machine_.apply(*choice, state);
    }
  }

  Limits limits_;
  Machine machine_;
  FingerprintSet seen_;
  std::vector<Origin> origins_;
  std::deque<PendingState> frontier_;
  std::vector<Choice> choices_;
  // The next three fields are for the option end_must_be_reachable.
  std::unordered_map<std::uint64_t, std::uint32_t> numbers_;  // by a state's fingerprint
  // Pairs of target and source. Deaths have no edges.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> reverse_edges_;
  std::vector<std::uint32_t> finished_states_;  // the states in which all threads have finished
  Finding finding_;
};

}  // namespace

Finding explore(const Scenario& scenario, const Limits& limits) {
  return Search(scenario, limits).run();
}

std::string_view name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kHolds:
      return "holds";
    case Verdict::kBounded:
      return "holds up to the bound";
    case Verdict::kDeadlock:
      return "deadlock";
    case Verdict::kLivelock:
      return "livelock";
    case Verdict::kViolation:
      return "violation";
  }
  return "";
}

}  // namespace farandole::model
