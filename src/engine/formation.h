// Formation: how the members of a job on one host meet. Each publishes who it is; rank 0 and the
// first member of every group publish shared memory; all map everything, and nobody goes on before
// all have. Afterwards nothing of it is left in the Store.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "collective/group.h"
#include "farandole/engine.h"
#include "rendezvous/store.h"
#include "transport/shm/doorbells.h"
#include "transport/shm/segment.h"
#include "transport/shm/shared_heap.h"

namespace farandole {

struct Peer {
  int rank = 0;
  std::int64_t pid = 0;
  Descriptor process;  // pidfd, opened by the process itself: no mix-up through a reused pid
  std::unique_ptr<PeerHeap> heap;
};

// A group that we are a member of. Its segment may be shared by several engines of one process.
struct FormedGroup {
  GroupId id = kWorld;
  std::vector<int> ranks;
  std::shared_ptr<Segment> segment;
};

struct Formation {
  std::int64_t epoch = 0;
  Costs costs;                       // for the groups whose first member we are
  std::size_t bucket_bytes = 0;      // as in EngineOptions, the same on all ranks
  std::shared_ptr<SharedHeap> heap;  // shared with other engines of the process, and all blocks
  std::vector<Peer> peers;           // by rank, ours included
  std::shared_ptr<Segment> doorbells_segment;
  std::unique_ptr<Doorbells> doorbells;
  std::vector<std::vector<int>> ranks_of;  // by GroupId, the world first, as init() asked for them
  std::vector<FormedGroup> groups;         // those that we are in
};

// How many groups there may be at a time, the world included: each has a segment.
inline constexpr std::size_t kGroupsMax = 32;

// Errors: kFixCall unless `ranks` is an ascending list of ranks of a job of that size.
Status check_group(const std::vector<int>& ranks, int size);

// The memory of a new group through the Store, from its first member to all. Errors: kStop naming
// the limit, or what came instead; taking: also kRetry, as Store::wait().
Status publish_group(Store& store, const std::string& key, int members, const Costs& costs);
Result<std::shared_ptr<Segment>> take_segment(Store& store, const std::string& key,
                                              std::size_t bytes, const WaitLimit& limit);

// Blocks until all are there, at most options.start_timeout. The options have a context. A rank
// that cannot take part says so, and all end with its reason. Errors: as Engine::create().
Result<Formation> form(const EngineOptions& options, Store& store);

}  // namespace farandole
