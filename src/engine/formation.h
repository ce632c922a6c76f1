// Formation: how the ranks of a job on one host connect to each other through the Store. Each rank
// publishes its member record. Rank 0 and the first member of every group publish shared memory.
// All ranks map it, and each waits until all others have done so. Then the keys are removed. The
// number of a rank's requests does not grow with the size of the job, except by one per 64 ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "collective/group.h"
#include "farandole/engine.h"
#include "rendezvous/local_store.h"
#include "transport/shm/doorbells.h"
#include "transport/shm/segment.h"
#include "transport/shm/shared_heap.h"

namespace farandole {

struct Peer {
  int rank = 0;
  std::int64_t pid = 0;
  // opened by that process itself, so it never refers to a later process with the same pid
  Descriptor pidfd;
  std::unique_ptr<PeerHeap> heap;
};

// A group of which this rank is a member. Engines of one process may share its segment.
struct FormedGroup {
  GroupId id = kWorld;
  std::vector<int> ranks;
  std::shared_ptr<Segment> segment;
};

struct Formation {
  std::int64_t epoch = 0;
  Costs costs;                       // for the groups whose first member is this rank
  std::size_t bucket_bytes = 0;      // as in Knobs, the same on all ranks
  std::shared_ptr<SharedHeap> heap;  // shared with this process's other engines and with tensors
  std::vector<Peer> peers;           // by rank, this rank included
  std::shared_ptr<Segment> doorbells_segment;
  std::unique_ptr<Doorbells> doorbells;
  std::byte* mailbox_memory = nullptr;     // in the segment of the doorbells
  std::vector<std::vector<int>> ranks_of;  // by GroupId: the world, and the groups given to init()
  std::vector<FormedGroup> groups;         // the groups of which this rank is a member
};

// How many groups there may be at the same time, the world included. Each has a segment.
inline constexpr std::size_t kGroupsMax = 32;

// Returns the ranks of a group as error texts show them: "[0, 2]".
std::string group_text(const std::vector<int>& ranks);
// Checks a list of ranks. Errors: kFixCall unless the list is ascending and within 0 … size − 1.
Status check_group(const std::vector<int>& ranks, int size);

// These functions pass the memory of a new group through the Store: its first member publishes the
// memory, and all members attach it. Errors: kStop, for a limit of the system or an unexpected
// value. attach_published_segment(): also kRetry, as LocalStore::receive().
Status publish_group(LocalStore& store, const std::string& key, int members, const Costs& costs);
Result<std::shared_ptr<Segment>> attach_published_segment(LocalStore& store, const std::string& key,
                                                          std::size_t bytes,
                                                          const WaitLimit& limit);

// Blocks until all ranks have joined, for at most options.start_timeout. options.context must be
// set. A rank that cannot take part publishes its error, and all ranks fail with it. Errors: as
// Engine::create().
Result<Formation> form(const EngineOptions& options, LocalStore& store);

}  // namespace farandole
