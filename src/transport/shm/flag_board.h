// FlagBoard: the flags of one group in shared memory. W slots per member; a slot is one flag line
// with one writer. Entering step k needs everyone's done ≥ k − W, so a line is never overwritten
// while somebody may still read it. Generation and sequence are one word, published last.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/shm/doorbells.h"

namespace farandole {

inline constexpr std::uint32_t kSlots = 2;  // W

// What a member says when it enters a step.
struct Entry {
  std::uint64_t identity = 0;  // compared for equality between members
  std::uint64_t location = 0;  // where its staging memory is, see SharedHeap::Location
  std::int64_t extent = 0;     // what may differ per rank: bytes of an all-gather
};

// One thread at a time (the baton's holder).
template <class Atomics>
class BasicFlagBoard {
 public:
  template <class T>
  using Atomic = typename Atomics::template Atomic<T>;

  struct alignas(kFlagLineBytes) Line {
    Atomic<std::uint64_t> word;  // generation << 32 | sequence
    Atomic<std::uint64_t> identity;
    Atomic<std::uint64_t> location;
    Atomic<std::int64_t> extent;
    Atomic<std::uint32_t> phase;  // windows staged, reduced, copied: the algorithm's own count
  };
  struct alignas(kFlagLineBytes) Done {
    Atomic<std::uint32_t> sequence;  // every step up to here is finished by this member
  };

  static std::size_t bytes_needed(int members);

  // `memory`: bytes_needed(members) zeroed bytes, shared by the members. `ranks`: the members'
  // world ranks, whose bells are rung.
  BasicFlagBoard(std::byte* memory, int member, std::vector<int> ranks,
                 BasicDoorbells<Atomics>& doorbells);

  int member() const;
  int members() const;

  // True when everyone's done ≥ sequence − W.
  bool may_enter(std::uint32_t sequence) const;
  // Publishes our entry (phase 0, payload relaxed, then the word seq_cst) and rings. Needs
  // may_enter(). From here on this is the current step.
  void enter(std::uint32_t generation, std::uint32_t sequence, const Entry& entry);
  // Everybody entered the current step. Only then may entry() be read.
  bool all_entered() const;
  Entry entry(int member) const;

  // Our progress in the current step, only ever growing; seq_cst, then rings.
  void publish_phase(std::uint32_t phase);
  // A member's phase in the current step (acquire). Needs all_entered().
  std::uint32_t phase(int member) const;
  bool all_reached(std::uint32_t phase) const;

  // We need nothing more of the current step: done = its sequence, seq_cst, then rings.
  void finish();
  bool all_done(std::uint32_t sequence) const;

  // Steps > prefix were not entered by all: forget ours. They come again, with the same numbers,
  // under a newer generation. Nothing may have been written for them.
  void withdraw(std::uint32_t prefix);
};

using FlagBoard = BasicFlagBoard<HardwareAtomics>;

}  // namespace farandole
