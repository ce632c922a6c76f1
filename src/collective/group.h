// Group: what an algorithm needs to know about those that work together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/shm/flag_board.h"
#include "transport/shm/shared_heap.h"

namespace farandole {

// A member's staging memory of one slot: the algorithm's scratch in shared memory, readable by all.
// Two halves, each with an input window and a result window.
inline constexpr std::size_t kWindowBytes = 256 * 1024;
inline constexpr std::size_t kStagingBytesPerSlot = 4 * kWindowBytes;
inline constexpr std::size_t kStagingBytes = kSlots * kStagingBytesPerSlot;

// Non-owning; lives as long as the engine's group. One thread at a time (the baton's holder).
struct Group {
  int member = 0;          // our index
  std::vector<int> ranks;  // world ranks, ascending
  FlagBoard* board = nullptr;
  std::byte* staging = nullptr;        // ours, kStagingBytes, slot by slot
  std::uint64_t staging_location = 0;  // the same as SharedHeap::location_of says it
  std::vector<const PeerHeap*> heaps;  // of each member; ours included

  int members() const { return static_cast<int>(ranks.size()); }
};

// Which step this is, agreed by all members; what they compare when they enter.
struct StepIdentity {
  std::uint32_t generation = 1;
  std::uint32_t sequence = 0;
  std::uint32_t id = 0;
};

// What advance() says. A step never blocks and does about one window of work per call.
// Once a step is kDone, every flag that the other members still need from us has been stored and
// our staging stays as it is until all are done: we may leave, the others can still finish.
enum class Progress : std::uint8_t {
  kPending,   // nothing to do until a flag of another member changes: sleeping is allowed
  kMoved,     // did some work: call again before sleeping, no bell rings for what is left
  kDone,      // the outputs are complete; do not call again
  kMismatch,  // somebody entered another step, or its entry makes no sense; nothing was written
};

}  // namespace farandole
