// Formation: how the ranks of a job connect to each other through the Stores. Each rank publishes
// its member record in the job's Store. From the records, all ranks find out which ranks are on
// which host. Then the ranks of each host share memory through their LocalStore. Each rank shares
// its heap, and the lowest rank shares the doorbells. The first member of a group on the host
// shares the group's memory. Each rank waits until all ranks of the job have mapped the memory that
// they need. Then the keys are removed. A rank sends few requests to the Stores, even in a large
// job: one more request for each 64 ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "collective/group.h"
#include "farandole/engine.h"
#include "formation/failpoint.h"
#include "formation/group_list.h"
#include "formation/hosts.h"
#include "rendezvous/local_store.h"
#include "transport/shm/doorbells.h"
#include "transport/shm/segment.h"
#include "transport/shm/shared_heap.h"

namespace farandole {

// A rank of this host.
struct Peer {
  int rank = 0;
  std::int64_t pid = 0;
  // The peer itself has opened this pidfd. So the pidfd cannot refer to a later process with the
  // same pid.
  Descriptor pidfd;
  std::unique_ptr<PeerHeap> heap;
  // The peer's flight record. Null unless the peer shares it and this rank is the lowest of the
  // host.
  std::shared_ptr<Segment> flight_record{};
};

// A group of which this rank is a member.
struct FormedGroup {
  GroupId id = kWorld;
  std::vector<int> ranks;  // the members on all hosts, in ascending order
  std::vector<int> hosts;  // for each member: the number of its host
  // The GroupMemory of the members on this host. Engines of one process may share it.
  std::shared_ptr<Segment> segment;

  bool is_on_several_hosts() const;
  // Returns the members of each host part, and the index of the host part of `own_rank`, which must
  // be a member. Sets only `members` and `host` of the result.
  HostParts parts(int own_rank) const;
};

struct Formation {
  std::int64_t epoch = 0;
  RankTopology topology;        // computed from the records, with all fields set
  std::vector<RankInfo> ranks;  // all ranks of the job, by rank
  // How many cores the ranks of this host may use together; at least 1.
  int cores = 1;
  Costs costs;  // used for the groups of which this rank is the first member on this host
  std::size_t bucket_bytes = 0;      // as in Knobs, the same on all ranks
  bool hierarchical_adasum = false;  // as in Knobs, the same on all ranks
  std::shared_ptr<SharedHeap> heap;  // also owned by other engines of this process and by tensors
  std::vector<Peer> peers;           // the ranks of this host, ascending, this rank included
  // The doorbells of this host, with a line for every rank of the job.
  std::shared_ptr<Segment> doorbells_segment;
  std::unique_ptr<Doorbells> doorbells;
  std::byte* mailbox_memory = nullptr;  // in the segment of the doorbells
  JobSize job_size = JobSize::kFixed;
  std::vector<std::vector<int>> ranks_of;      // by GroupId, as returned by all_groups()
  std::vector<std::vector<int>> given_groups;  // given to init(); element i is group i + 1
  std::vector<FormedGroup> groups;             // the groups of which this rank is a member

  // The number of hosts of the job. The hosts are numbered 0 … hosts() − 1.
  int hosts() const;
  int host_of(int rank) const { return ranks[static_cast<std::size_t>(rank)].host; }
  std::vector<int> hosts_of(const std::vector<int>& members) const;
  // Returns the members that are on this host.
  std::vector<int> members_on_this_host(const std::vector<int>& members) const;
  // The rank must be on this host.
  const Peer& peer(int rank) const;
};

struct FormationInput {
  const EngineOptions& options;
  Stores stores;
  // Makes the heap of this process; `bytes` is its size. Errors: kStop.
  std::function<Result<std::shared_ptr<SharedHeap>>(std::size_t bytes)> make_heap;
  // Begins to listen for other hosts in this epoch, and returns RankInfo::addresses. In a job on
  // one host, this function may be empty.
  std::function<Result<std::vector<std::string>>(std::int64_t epoch)> listen = {};
  // The memory of this rank's flight record, which the lowest rank of the host also maps. Null if a
  // launcher reads the record. Either all ranks set this field, or no rank does.
  const Segment* flight_record = nullptr;
  std::shared_ptr<Failpoint> failpoint{};  // also owned by the process context and its engines
};

// Blocks until all ranks have joined, for at most options.start_timeout. A rank that cannot take
// part publishes its error, and all ranks fail with this error. Errors: as Engine::create().
Result<Formation> form(const FormationInput& input);

}  // namespace farandole
