#include "simulated_network.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace farandole {

// Returns a random duration: between 1 ms and much more than a node needs to notice a cut.
Duration SimulatedNetwork::random_duration() {
  const int duration_ms_max =
      std::uniform_int_distribution<int>(0, 1)(random_) == 0 ? 2'000 : 15'000;
  return std::chrono::milliseconds(std::uniform_int_distribution<int>(1, duration_ms_max)(random_));
}

void SimulatedNetwork::cut(int from, int to, TimePoint now) {
  if (from == to || !is_open(from, to)) return;
  apply_change(from, to, false);
  changes_.emplace(now + random_duration(), Change{.from = from, .to = to, .is_healing = true});
}

void SimulatedNetwork::cut_both(int node, int other_node, TimePoint now) {
  schedule_cut(node, other_node, now, now + random_duration());
}

// Cuts one pair of nodes from the time `begin` to the time `end`.
void SimulatedNetwork::schedule_cut(int node, int other_node, TimePoint begin, TimePoint end) {
  if (node == other_node) return;
  for (const auto& [from, to] : {std::pair(node, other_node), std::pair(other_node, node)}) {
    changes_.emplace(begin, Change{.from = from, .to = to, .is_healing = false});
    changes_.emplace(end, Change{.from = from, .to = to, .is_healing = true});
  }
}

void SimulatedNetwork::isolate(int node, int nodes, bool also_from_0, TimePoint now) {
  const TimePoint end = now + random_duration();
  for (int other_node = also_from_0 ? 0 : 1; other_node < nodes; ++other_node)
    schedule_cut(node, other_node, now, end);
}

void SimulatedNetwork::isolate_random_nodes_in_turn(int nodes, TimePoint now) {
  std::vector<int> chosen_nodes;
  for (int node = 1; node < nodes; ++node)
    if (std::uniform_int_distribution<int>(0, 1)(random_) == 0) chosen_nodes.push_back(node);
  if (chosen_nodes.empty()) chosen_nodes.push_back(nodes - 1);
  std::vector<TimePoint> cut_begins;
  TimePoint time = now;
  for (std::size_t i = 0; i < chosen_nodes.size(); ++i, time += random_duration() / 4)
    cut_begins.push_back(time);
  std::vector<std::size_t> order(chosen_nodes.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::shuffle(order, random_);
  for (const std::size_t i : order) {
    time += random_duration() / 4;
    for (int other_node = 0; other_node < nodes; ++other_node)
      schedule_cut(chosen_nodes[i], other_node, cut_begins[i], time);
  }
}

void SimulatedNetwork::slow_down(int node, TimePoint now) {
  if (!slow_nodes_.insert(node).second) return;
  changes_.emplace(now + random_duration(), Change{.from = node, .to = node, .is_healing = true});
}

void SimulatedNetwork::advance(TimePoint now) {
  while (!changes_.empty() && changes_.begin()->first <= now) {
    const Change due_change = changes_.begin()->second;
    changes_.erase(changes_.begin());
    apply_change(due_change.from, due_change.to, due_change.is_healing);
  }
}

void SimulatedNetwork::apply_change(int from, int to, bool is_healing) {
  if (from == to) {
    slow_nodes_.erase(from);
  } else if (is_healing) {
    cuts_.erase({from, to});
  } else {
    cuts_.insert({from, to});
  }
}

}  // namespace farandole
