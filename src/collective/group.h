// Group: what an algorithm needs to know about those that work together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collective/costs.h"
#include "transport/shm/flag_board.h"
#include "transport/shm/shared_heap.h"

namespace farandole {

// A member's staging memory of one slot: the algorithm's scratch in shared memory, written by that
// member and readable by all. Both slots together are larger than a second-level cache: see Parts.
inline constexpr std::size_t kWindowBytes = 256 * 1024;
inline constexpr std::size_t kStagingBytesPerSlot = 8 * kWindowBytes;
inline constexpr std::size_t kStagingBytes = kSlots * kStagingBytesPerSlot;

// How much one call of advance() copies or reduces, about, where there are no windows.
inline constexpr std::int64_t kChunkBytes = 256 * 1024;

// Non-owning; lives as long as the engine's group. One thread at a time (the baton's holder).
struct Group {
  int member = 0;          // our index
  std::vector<int> ranks;  // world ranks, ascending
  FlagBoard* board = nullptr;
  std::vector<std::byte*> stagings;    // of each member, kStagingBytes, slot by slot
  const SharedHeap* heap = nullptr;    // ours; null: we have no memory that the others can see
  std::vector<const PeerHeap*> heaps;  // of each member, ours included
  Costs costs;                         // the same on all members
  // Scratch of the one step that is under way, from when all have entered it; kept to save the
  // allocations.
  mutable std::vector<const std::byte*> inputs = {};
  mutable std::vector<std::byte*> outputs = {};
  mutable std::vector<double> products = {};
  mutable std::vector<double> weights = {};
  mutable std::vector<std::int64_t> splits = {};
  mutable std::vector<std::int64_t> counts = {};
  mutable std::vector<std::int64_t> offsets = {};

  int members() const { return static_cast<int>(ranks.size()); }
};

// Which step this is. The turn says which entries belong together; the id, what the step does, is
// what members compare when all have entered.
struct StepIdentity {
  std::uint32_t generation = 1;
  std::uint32_t sequence = 0;
  std::uint64_t id = 0;
};

// What advance() says. A step never blocks and does about one window of work per call.
// Once a step is kDone, all members have stored every flag that anybody still needs, and our
// staging and the flag line stay as they are until all have entered the next step: we may leave,
// the others finish without waiting.
enum class Progress : std::uint8_t {
  kPending,   // nothing to do until a flag of another member changes: sleeping is allowed
  kMoved,     // did some work: call again before sleeping, no bell rings for what is left
  kDone,      // the outputs are complete; do not call again
  kSurprise,  // all have entered this turn, but not all this step; nobody writes anything in it
  kMismatch,  // somebody's entry makes no sense; nothing was written
};

}  // namespace farandole
