// Group: what an algorithm needs to know about the members of its group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collective/costs.h"
#include "transport/shm/flag_board.h"
#include "transport/shm/shared_heap.h"

namespace farandole {

// A member's staging memory of one slot: scratch of the algorithm in shared memory, which that
// member writes and all can read. Both slots together are larger than a second-level cache: see
// Parts.
inline constexpr std::size_t kWindowBytes = 256 * 1024;
inline constexpr std::size_t kStagingBytesPerSlot = 8 * kWindowBytes;
inline constexpr std::size_t kStagingBytes = kSlots * kStagingBytesPerSlot;

// About how much one call of advance() copies or reduces if there are no windows.
inline constexpr std::int64_t kChunkBytes = 256 * 1024;

// What a step notes about the members after all have entered it. The next one gets it as it is, to
// save the allocations.
struct StepScratch {
  std::vector<const std::byte*> inputs = {};
  std::vector<std::byte*> outputs = {};
  std::vector<double> products = {};
  std::vector<double> weights = {};
  std::vector<std::int64_t> splits = {};
  std::vector<std::int64_t> counts = {};
  std::vector<std::int64_t> offsets = {};
};

// Owns nothing but the scratch; lives as long as the engine's group. One thread at a time (the
// holder of the progress lock).
struct Group {
  int member = 0;          // our index
  std::vector<int> ranks;  // world ranks, ascending
  FlagBoard* board = nullptr;
  std::vector<std::byte*> stagings;    // by member: kStagingBytes, slot by slot
  const SharedHeap* heap = nullptr;    // ours; null if the others cannot see any of our memory
  std::vector<const PeerHeap*> heaps;  // by member, with our own
  Costs costs;                         // the same on all members
  StepScratch scratch = {};            // of the one step that is running

  int members() const { return static_cast<int>(ranks.size()); }
};

// Which step this is. The step number says which entries belong together. The id stands for what
// the step does; members compare it after all have entered.
struct StepIdentity {
  std::uint32_t generation = 1;
  std::uint32_t sequence = 0;
  std::uint64_t id = 0;
};

// The result of advance(). A step never blocks and does about one window of work per call. When a
// step is kDone, all members have stored every flag that any member still needs. Our staging memory
// and flag line stay unchanged until all have entered the next step. So we may leave, and the
// others finish without waiting.
enum class Progress : std::uint8_t {
  kPending,  // nothing to do until another member's flag changes: the caller may sleep
  kMoved,    // did some work: call again before sleeping, because no bell rings for the rest
  kDone,     // the outputs are complete; do not call again
  // all have entered this step, but with different identities; no member writes anything in it
  kMisprediction,
  kMismatch,  // an entry is invalid; nothing was written
};

}  // namespace farandole
