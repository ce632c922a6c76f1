// Formation: how the members of a job on one host meet. Each publishes who it is; rank 0 and the
// first member of every group publish shared memory; all map everything, and nobody goes on before
// all have. Afterwards nothing of it is left in the Store.
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/descriptor.h"
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

// A group that we are a member of.
struct FormedGroup {
  GroupId id = kWorld;
  std::vector<int> ranks;
  std::shared_ptr<Segment> segment;
};

struct Formation {
  std::unique_ptr<SharedHeap> heap;
  std::vector<Peer> peers;  // by rank, ours included
  std::shared_ptr<Segment> doorbells_segment;
  std::unique_ptr<Doorbells> doorbells;
  std::vector<FormedGroup> groups;
};

// Blocks until all are there, at most options.start_timeout. Errors: as Engine::create().
Result<Formation> form(const EngineOptions& options, Store& store, const Clock& clock);

// The groups' ranks by GroupId, the world first. Errors: kFixCall for a list that is not ascending,
// not inside the job, empty or given twice.
Result<std::vector<std::vector<int>>> all_groups(const EngineOptions& options);

}  // namespace farandole
