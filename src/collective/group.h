// Group: what an algorithm needs to know about the members of its group.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "collective/costs.h"
#include "transport/shm/flag_board.h"
#include "transport/shm/shared_heap.h"

namespace farandole {

// Staging memory is shared memory that one member writes and all members can read. A member has
// kStagingBytesPerSlot for each slot. Both slots together are larger than a second-level cache; the
// comment of Parts in staging.h explains why this matters.
inline constexpr std::size_t kWindowBytes = 256 * 1024;
inline constexpr std::size_t kStagingBytesPerSlot = 8 * kWindowBytes;
inline constexpr std::size_t kStagingBytes = kSlots * kStagingBytesPerSlot;

// About how many bytes one call of advance() copies or reduces if the tensor is not divided into
// windows.
inline constexpr std::int64_t kBytesPerAdvance = 256 * 1024;

// Lists that a step fills after all members have entered. The next step reuses them, which saves
// allocations.
struct StepScratch {
  std::vector<const std::byte*> inputs = {};
  std::vector<std::byte*> outputs = {};
  std::vector<double> dot_products = {};
  std::vector<double> weights = {};
  std::vector<std::int64_t> splits = {};
  std::vector<std::int64_t> counts = {};
  std::vector<std::int64_t> offsets = {};
};

struct CollectiveCall;
struct Group;
class Lane;
class StepBetweenHosts;
struct StepIdentity;

// How the members of a group are distributed over several hosts. The members on one host are a host
// part. The order of the host parts is that of their lowest members.
struct HostParts {
  int host = 0;                           // the index of our host part
  std::vector<std::vector<int>> members;  // for each host part: its members in the group, ascending
  Lane* lane = nullptr;  // our lane; null if our index in the host part is lanes() or more
  bool hierarchical_adasum = false;  // see Knobs::hierarchical_adasum
  // start_step() of the room `hosts`. That room has the algorithms for groups on several hosts.
  std::unique_ptr<StepBetweenHosts> (*start_step)(Group&, const StepIdentity&,
                                                  CollectiveCall&&) = nullptr;

  int hosts() const { return static_cast<int>(members.size()); }
  int members_on(int index) const {
    return static_cast<int>(members[static_cast<std::size_t>(index)].size());
  }
  int lanes() const;               // how many lanes: as many as the smallest host part has members
  int group_members() const;       // how many members all host parts have together
  int host_of(int member) const;   // the index of the host part that has this member of the group
  int index_of(int member) const;  // the index of a member of the group in its host part
};

inline int HostParts::lanes() const {
  int fewest = members_on(0);
  for (int index = 1; index < hosts(); ++index) fewest = std::min(fewest, members_on(index));
  return fewest;
}

inline int HostParts::group_members() const {
  int sum = 0;
  for (int index = 0; index < hosts(); ++index) sum += members_on(index);
  return sum;
}

inline int HostParts::host_of(int member) const {
  int index = 0;
  while (!std::ranges::binary_search(members[static_cast<std::size_t>(index)], member)) ++index;
  return index;
}

inline int HostParts::index_of(int member) const {
  const std::vector<int>& part = members[static_cast<std::size_t>(host_of(member))];
  return static_cast<int>(std::ranges::lower_bound(part, member) - part.begin());
}

// A Group owns only the scratch lists, and lives as long as the group in the engine. Only one
// thread at a time may use it: the holder of the progress lock.
struct Group {
  int member = 0;          // our index
  std::vector<int> ranks;  // world ranks, ascending
  FlagBoard* board = nullptr;
  std::vector<std::byte*> stagings;    // for each member: kStagingBytes, slot by slot
  const SharedHeap* heap = nullptr;    // our heap; null if the others cannot see our memory
  std::vector<const PeerHeap*> heaps;  // by member, including ours
  Costs costs;                         // the same on all members
  StepScratch scratch = {};            // for the step that is running
  // Set if the group has members on several hosts. Then all other fields describe only our host
  // part: `member` is our index in it, and `ranks` are its ranks.
  std::optional<HostParts> parts = {};

  int members() const { return static_cast<int>(ranks.size()); }
};

// Which step this is. The generation and the sequence say which entries of the members belong
// together. The id is a digest of what the step does; the members compare it after all have
// entered.
struct StepIdentity {
  std::uint32_t generation = 1;
  std::uint32_t sequence = 0;
  std::uint64_t id = 0;
};

// The result of advance(). A step never blocks and does about one window of work per call. When a
// step is kDone, all members have stored every flag that any member still needs. Our staging memory
// and flag line then stay unchanged until all have entered the next step. So we may continue, and
// the others finish without waiting for us.
enum class Progress : std::uint8_t {
  kPending,   // no work until another member's flag changes: the caller may sleep
  kAdvanced,  // did some work: call again before sleeping, because no doorbell will ring for the
              // remaining work
  kDone,      // the outputs are complete; do not call again
  // all have entered this step, but with different identities; no member writes anything in it
  kMisprediction,
  kMismatch,  // an entry is invalid; nothing was written
};

// A running step of a group that has members on several hosts. It keeps the promises of
// CollectiveStep.
class StepBetweenHosts {
 public:
  virtual ~StepBetweenHosts() = default;

  // Does a bounded amount of work; see Progress.
  virtual Progress advance() = 0;
};

}  // namespace farandole
