// NodeLayout: how many workers each node of a job has, and which ranks follow from that. A node is
// the part of a job that one `farandole run` starts, usually one per host.
#pragma once

#include <cstddef>
#include <vector>

namespace farandole {

inline constexpr int kNodesMax = 4096;
inline constexpr int kWorkersMax = 65536;  // of a job

// Ranks are numbered node by node. All functions are pure; `node` is the node of this launcher.
struct NodeLayout {
  int node = 0;
  std::vector<int> workers{1};  // by node

  int nodes() const { return static_cast<int>(workers.size()); }
  int size() const;  // workers in the job
  int local_size() const { return workers.at(static_cast<std::size_t>(node)); }
  int first_rank() const;  // the rank of this node's first worker
  int rank_of(int local_rank) const { return first_rank() + local_rank; }
  // The position of a worker among those with the same local rank on all nodes.
  int cross_rank(int local_rank) const;
  int cross_size(int local_rank) const;
};

}  // namespace farandole
