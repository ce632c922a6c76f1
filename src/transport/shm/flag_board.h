// FlagBoard: the flags of one group in shared memory. W slots per member; a slot is one flag line
// with one writer. Entering step k needs everyone's done ≥ k − W, so a line is never overwritten
// while somebody may still read it. Generation and sequence are one word, published last. Sequences
// count modulo 2^32 and are compared as distances; a job may run longer than that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
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

// One thread at a time (the baton's holder). Generations start at 1: a zero line means nothing.
template <class Atomics, std::uint32_t Slots = kSlots>
class BasicFlagBoard {
 public:
  static_assert(Slots > 0 && (Slots & (Slots - 1)) == 0, "slots must go on across 2^32");

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

  static std::size_t bytes_needed(int members) {
    return static_cast<std::size_t>(members) * (Slots * sizeof(Line) + sizeof(Done));
  }

  // `memory`: bytes_needed(members) zeroed bytes, shared by the members. `ranks`: the members'
  // world ranks, whose bells are rung.
  BasicFlagBoard(std::byte* memory, int member, std::vector<int> ranks,
                 BasicDoorbells<Atomics>& doorbells);

  int member() const { return member_; }
  int members() const { return static_cast<int>(ranks_.size()); }
  // The current step; generation 0 when there is none.
  std::uint32_t generation() const { return generation_; }
  std::uint32_t sequence() const { return sequence_; }

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
  // A member's phase in the current step (seq_cst). Needs all_entered().
  std::uint32_t phase(int member) const;
  bool all_reached(std::uint32_t phase) const;

  // We need nothing more of the current step: done = its sequence, seq_cst, then rings.
  void finish();
  bool all_done(std::uint32_t sequence) const;

  // Steps > prefix were not entered by all: forget ours. They come again, with the same numbers,
  // under a newer generation. Nothing may have been written for them.
  void withdraw(std::uint32_t prefix);

 private:
  // The line of a member for the current step.
  Line& line(int member) const {
    CHECK(member >= 0 && member < members(), "a member's number lies inside its group");
    CHECK(generation_ != 0, "there must be a current step");
    return lines_[static_cast<std::uint32_t>(member) * Slots + sequence_ % Slots];
  }
  // a ≥ b, for sequences less than 2^31 apart.
  static bool reached(std::uint32_t a, std::uint32_t b) {
    return static_cast<std::int32_t>(a - b) >= 0;
  }
  std::uint32_t done(int member) const {
    return done_[member].sequence.load(std::memory_order_seq_cst);
  }
  void ring_others();

  Line* lines_;
  Done* done_;
  int member_;
  std::vector<int> ranks_;
  BasicDoorbells<Atomics>* doorbells_;
  std::uint32_t generation_ = 0;
  std::uint32_t sequence_ = 0;
};

template <class Atomics, std::uint32_t Slots>
BasicFlagBoard<Atomics, Slots>::BasicFlagBoard(std::byte* memory, int member,
                                               std::vector<int> ranks,
                                               BasicDoorbells<Atomics>& doorbells)
    : lines_(reinterpret_cast<Line*>(memory)),
      done_(reinterpret_cast<Done*>(memory + ranks.size() * Slots * sizeof(Line))),
      member_(member),
      ranks_(std::move(ranks)),
      doorbells_(&doorbells) {
  CHECK(member >= 0 && member < members(), "a member's number lies inside its group");
  CHECK(ranks_[static_cast<std::size_t>(member)] == doorbells.rank(),
        "the bells must be those of the member's own rank");
}

template <class Atomics, std::uint32_t Slots>
bool BasicFlagBoard<Atomics, Slots>::may_enter(std::uint32_t sequence) const {
  return all_done(sequence - Slots);
}

template <class Atomics, std::uint32_t Slots>
void BasicFlagBoard<Atomics, Slots>::enter(std::uint32_t generation, std::uint32_t sequence,
                                           const Entry& entry) {
  CHECK(generation != 0, "generations start at 1");
  generation_ = generation;
  sequence_ = sequence;
  Line& mine = line(member_);
  mine.identity.store(entry.identity, std::memory_order_relaxed);
  mine.location.store(entry.location, std::memory_order_relaxed);
  mine.extent.store(entry.extent, std::memory_order_relaxed);
  mine.phase.store(0, std::memory_order_relaxed);
  mine.word.store(std::uint64_t{generation} << 32 | sequence, std::memory_order_seq_cst);
  ring_others();
}

template <class Atomics, std::uint32_t Slots>
bool BasicFlagBoard<Atomics, Slots>::all_entered() const {
  const auto expected = std::uint64_t{generation_} << 32 | sequence_;
  for (int other = 0; other < members(); ++other)
    if (line(other).word.load(std::memory_order_seq_cst) != expected) return false;
  return true;
}

template <class Atomics, std::uint32_t Slots>
Entry BasicFlagBoard<Atomics, Slots>::entry(int member) const {
  const Line& theirs = line(member);
  return {.identity = theirs.identity.load(std::memory_order_relaxed),
          .location = theirs.location.load(std::memory_order_relaxed),
          .extent = theirs.extent.load(std::memory_order_relaxed)};
}

template <class Atomics, std::uint32_t Slots>
void BasicFlagBoard<Atomics, Slots>::publish_phase(std::uint32_t phase) {
  line(member_).phase.store(phase, std::memory_order_seq_cst);
  ring_others();
}

template <class Atomics, std::uint32_t Slots>
std::uint32_t BasicFlagBoard<Atomics, Slots>::phase(int member) const {
  return line(member).phase.load(std::memory_order_seq_cst);
}

template <class Atomics, std::uint32_t Slots>
bool BasicFlagBoard<Atomics, Slots>::all_reached(std::uint32_t phase) const {
  for (int other = 0; other < members(); ++other)
    if (this->phase(other) < phase) return false;
  return true;
}

template <class Atomics, std::uint32_t Slots>
void BasicFlagBoard<Atomics, Slots>::finish() {
  CHECK(generation_ != 0, "there must be a current step");
  done_[member_].sequence.store(sequence_, std::memory_order_seq_cst);
  ring_others();
}

template <class Atomics, std::uint32_t Slots>
bool BasicFlagBoard<Atomics, Slots>::all_done(std::uint32_t sequence) const {
  for (int other = 0; other < members(); ++other)
    if (!reached(done(other), sequence)) return false;
  return true;
}

template <class Atomics, std::uint32_t Slots>
void BasicFlagBoard<Atomics, Slots>::withdraw(std::uint32_t prefix) {
  CHECK(reached(prefix, done(member_)), "a finished step cannot be withdrawn");
  // The line may stay as it is: its generation is over, so its word matches no step to come.
  if (generation_ != 0 && !reached(prefix, sequence_)) generation_ = 0;
}

template <class Atomics, std::uint32_t Slots>
void BasicFlagBoard<Atomics, Slots>::ring_others() {
  for (const int rank : ranks_)
    if (rank != doorbells_->rank()) doorbells_->ring(rank);
}

using FlagBoard = BasicFlagBoard<HardwareAtomics>;

}  // namespace farandole
