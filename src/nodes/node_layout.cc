#include "nodes/node_layout.h"

#include <algorithm>
#include <numeric>

namespace farandole {
namespace {

int count_nodes_with(const std::vector<int>& workers, int nodes, int local_rank) {
  return static_cast<int>(std::count_if(workers.begin(), workers.begin() + nodes,
                                        [&](int count) { return count > local_rank; }));
}

}  // namespace

int NodeLayout::size() const { return std::accumulate(workers.begin(), workers.end(), 0); }

int NodeLayout::first_rank() const {
  return std::accumulate(workers.begin(), workers.begin() + node, 0);
}

int NodeLayout::cross_rank(int local_rank) const {
  return count_nodes_with(workers, node, local_rank);
}

int NodeLayout::cross_size(int local_rank) const {
  return count_nodes_with(workers, nodes(), local_rank);
}

}  // namespace farandole
