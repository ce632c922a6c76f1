// How many file descriptors the launcher needs for a job. If its limit is too low, the launcher
// rejects the job. `farandole doctor` shows how many workers the limit allows.
#pragma once

#include "nodes/node_layout.h"

namespace farandole {

// Each worker needs seven: two for its output streams, a socket, a pidfd, its flight record, and
// the two descriptors that it publishes in the store.
inline constexpr int kDescriptorsPerWorker = 7;
// Further descriptors: the job sheet and the reserved port; for a short time, also the segments of
// groups that are forming, the descriptors that the next worker inherits, and a folder of /proc.
inline constexpr int kFurtherDescriptors = 18;
// The number of descriptors that the launcher has open before it starts the first worker.
inline constexpr int kDescriptorsAtStart = 9;

// In a job over several nodes: the secret, the listener with up to 64 handshakes, and event sets.
inline constexpr int kNodeDescriptors = 80;

// In an elastic job, also a socket for each worker (WorkerNotices).
inline constexpr int kDescriptorsPerElasticWorker = 1;

constexpr int descriptors_needed(int workers) {
  return kDescriptorsPerWorker * workers + kFurtherDescriptors;
}
// Node 0 also has a connection to each other node, and to each worker.
inline int descriptors_needed(int workers, const NodeLayout& layout, bool is_elastic) {
  const int connections_on_node_0 = layout.node == 0 ? layout.nodes() + layout.size() : 0;
  return descriptors_needed(workers) + (is_elastic ? kDescriptorsPerElasticWorker * workers : 0) +
         (layout.nodes() > 1 ? kNodeDescriptors + connections_on_node_0 : 0);
}

}  // namespace farandole
