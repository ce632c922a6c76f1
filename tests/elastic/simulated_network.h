// SimulatedNetwork: which nodes of a simulated job reach which others, and which nodes are slow.
// All that is broken heals by itself after some seconds. Messages are not lost by a short cut: they
// arrive later, as with TCP.
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
  bool connects(int one, int other) const { return is_open(one, other) && is_open(other, one); }
  bool is_slow(int node) const { return slow_.contains(node); }
  bool is_healthy() const { return cuts_.empty() && slow_.empty() && changes_.empty(); }

  void cut(int from, int to, TimePoint now);
  void cut_both(int one, int other, TimePoint now);
  // Cuts a node from all others; from node 0 only if `also_from_0`.
  void isolate(int node, int nodes, bool also_from_0, TimePoint now);
  // Isolates a random half of the nodes one after the other, and heals them in another order.
  void swizzle(int nodes, TimePoint now);
  void slow_down(int node, TimePoint now);
  // Does what is due.
  void advance(TimePoint now);

 private:
  struct Change {
    int from = 0;
    int to = 0;  // the same as `from`: the node is slow
    bool heals = false;
  };

  Duration some_time();
  void change(int from, int to, bool heals);
  void isolate_from(int node, int nodes, TimePoint begin, TimePoint end);

  std::mt19937& random_;
  std::set<std::pair<int, int>> cuts_;
  std::set<int> slow_;
  std::multimap<TimePoint, Change> changes_;  // that are to come
};

}  // namespace farandole
