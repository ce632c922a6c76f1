// SimulatedNetwork: which nodes of a simulated job reach which other nodes, and which nodes are
// slow. All faults heal after some seconds. A short cut loses no messages: they arrive later, as
// with TCP.
#pragma once

#include <map>
#include <random>
#include <set>
#include <utility>

#include "base/time_point.h"

namespace farandole {

class SimulatedNetwork {
 public:
  explicit SimulatedNetwork(std::mt19937& random) : random_(random) {}

  bool is_open(int from, int to) const { return !cuts_.contains({from, to}); }
  // Whether a connection between two nodes works, which needs both directions.
  bool connects(int node, int other_node) const {
    return is_open(node, other_node) && is_open(other_node, node);
  }
  bool is_slow(int node) const { return slow_nodes_.contains(node); }
  bool is_healthy() const { return cuts_.empty() && slow_nodes_.empty() && changes_.empty(); }

  void cut(int from, int to, TimePoint now);
  void cut_both(int node, int other_node, TimePoint now);
  // Cuts a node from all other nodes; from node 0 only if `also_from_0`.
  void isolate(int node, int nodes, bool also_from_0, TimePoint now);
  // Isolates a random half of the nodes one after the other, and reconnects these nodes in another
  // order.
  void isolate_random_nodes_in_turn(int nodes, TimePoint now);
  void slow_down(int node, TimePoint now);
  // Applies all changes that are due.
  void advance(TimePoint now);

 private:
  struct Change {
    int from = 0;
    int to = 0;  // if `to` equals `from`: this node stops being slow
    bool is_healing = false;
  };

  Duration random_duration();
  void apply_change(int from, int to, bool is_healing);
  void schedule_cut(int node, int other_node, TimePoint begin, TimePoint end);

  std::mt19937& random_;
  std::set<std::pair<int, int>> cuts_;
  std::set<int> slow_nodes_;
  std::multimap<TimePoint, Change> changes_;  // future changes
};

}  // namespace farandole
