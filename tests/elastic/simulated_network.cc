#include "simulated_network.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace farandole {

// From a moment to much longer than it takes to notice a cut.
Duration SimulatedNetwork::some_time() {
  const int most = std::uniform_int_distribution<int>(0, 1)(random_) == 0 ? 2'000 : 15'000;
  return std::chrono::milliseconds(std::uniform_int_distribution<int>(1, most)(random_));
}

void SimulatedNetwork::cut(int from, int to, TimePoint now) {
  if (from == to || !is_open(from, to)) return;
  change(from, to, false);
  changes_.emplace(now + some_time(), Change{.from = from, .to = to, .heals = true});
}

void SimulatedNetwork::cut_both(int one, int other, TimePoint now) {
  isolate_from(one, other, now, now + some_time());
}

// Cuts one pair of nodes from the begin to the end.
void SimulatedNetwork::isolate_from(int one, int other, TimePoint begin, TimePoint end) {
  if (one == other) return;
  for (const auto& [from, to] : {std::pair(one, other), std::pair(other, one)}) {
    changes_.emplace(begin, Change{.from = from, .to = to, .heals = false});
    changes_.emplace(end, Change{.from = from, .to = to, .heals = true});
  }
}

void SimulatedNetwork::isolate(int node, int nodes, bool also_from_0, TimePoint now) {
  const TimePoint end = now + some_time();
  for (int other = also_from_0 ? 0 : 1; other < nodes; ++other) isolate_from(node, other, now, end);
}

void SimulatedNetwork::swizzle(int nodes, TimePoint now) {
  std::vector<int> chosen;
  for (int node = 1; node < nodes; ++node)
    if (std::uniform_int_distribution<int>(0, 1)(random_) == 0) chosen.push_back(node);
  if (chosen.empty()) chosen.push_back(nodes - 1);
  std::vector<TimePoint> begins;
  TimePoint at = now;
  for (std::size_t i = 0; i < chosen.size(); ++i, at += some_time() / 4) begins.push_back(at);
  std::vector<std::size_t> order(chosen.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::shuffle(order, random_);
  for (const std::size_t i : order) {
    at += some_time() / 4;
    for (int other = 0; other < nodes; ++other) isolate_from(chosen[i], other, begins[i], at);
  }
}

void SimulatedNetwork::slow_down(int node, TimePoint now) {
  if (!slow_.insert(node).second) return;
  changes_.emplace(now + some_time(), Change{.from = node, .to = node, .heals = true});
}

void SimulatedNetwork::advance(TimePoint now) {
  while (!changes_.empty() && changes_.begin()->first <= now) {
    const Change due = changes_.begin()->second;
    changes_.erase(changes_.begin());
    change(due.from, due.to, due.heals);
  }
}

void SimulatedNetwork::change(int from, int to, bool heals) {
  if (from == to) {
    slow_.erase(from);
  } else if (heals) {
    cuts_.erase({from, to});
  } else {
    cuts_.insert({from, to});
  }
}

}  // namespace farandole
