// FlagBoard: the flags of one group in shared memory. Each member has two slots. A slot is one flag
// line with one writer, with room for a little data beside the flags. A member enters its steps one
// after another, each when it has completed the previous one, and no member completes a step before
// all have entered it. So a member that enters step k knows that all have entered step k − 1 and
// need nothing of step k − 2 any more. It may overwrite the line of step k − 2 and all memory of
// that slot, and no member needs to count which others are done. Generation and sequence are one
// word, which is published last. Sequences count modulo 2^32.
//
// If not all members entered the same step, the step is rolled back, and the same number comes
// again under a newer generation. A slow member may then still read the old entry. So the identity
// is stored mixed with its word, and a new entry never looks like the old one.
//
// A member that cannot go on says for which other member it waits. Only that one wakes it, so with
// p sleeping members a step takes about p wake-ups instead of p². A look at the members begins with
// the one that was missing last, so it costs one load while that one is missing. Who comes last in
// one step often does so in the next one, too.
//
// The members also agree here on how a group ends. If a member must end in the middle of a step, it
// needs to know whether the others may still run that step. try_close() and may_run() decide this
// once for all members, by compare-and-swap on one shared word.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/platform.h"
#include "transport/shm/doorbells.h"

namespace farandole {

inline constexpr std::uint32_t kSlots = 2;
// How much data fits into a flag line.
inline constexpr std::size_t kInlineBytes = 1104;
// The location of memory that the other members cannot see.
inline constexpr std::uint64_t kNowhere = ~std::uint64_t{0};

// What a member publishes when it enters a step.
struct Entry {
  std::uint64_t identity = 0;       // what the step does; members compare it
  std::int64_t declared_count = 0;  // may differ per rank: bytes of an all-gather
  std::uint64_t input = kNowhere;   // the location of its memory, from SharedHeap::location_of()
  std::uint64_t output = kNowhere;  // likewise
};

// For one thread at a time (the holder of the progress lock). Generations start at 1, so a zero
// line is no entry.
template <class Atomics, std::uint32_t Slots = kSlots>
class BasicFlagBoard {
 public:
  template <class T>
  using Atomic = typename Atomics::template Atomic<T>;

  struct alignas(kFlagLineBytes) Line {
    Atomic<std::uint64_t> word;      // generation << 32 | sequence
    Atomic<std::uint64_t> identity;  // ^ word
    Atomic<std::int64_t> declared_count;
    Atomic<std::uint64_t> input;
    Atomic<std::uint64_t> output;
    Atomic<std::uint32_t> phase;      // progress in the step, as its algorithm defines it
    Atomic<std::uint32_t> abandoned;  // 1: this member no longer touches any memory of this step
    alignas(
        16) std::array<std::byte, kInlineBytes> inline_payload;  // begins in the word's cache line
  };

  static_assert(sizeof(Line) % kFlagLineBytes == 0);

  // One for all members; it comes after the lines.
  struct alignas(kFlagLineBytes) Closing {
    Atomic<std::uint64_t> word;  // sequence << 2 | State; 0 until a member wants to end a step
  };

  // One per member, after the closing word; only this member writes it. Not in its line, which the
  // others poll.
  struct alignas(kFlagLineBytes) Waiting {
    Atomic<std::uint32_t> awaited;  // 1 + the only member whose stores matter to it; 0: all do
  };

  static std::size_t bytes_needed(int members) {
    return static_cast<std::size_t>(members) * (Slots * sizeof(Line) + sizeof(Waiting)) +
           sizeof(Closing);
  }

  // `memory` is bytes_needed(members) zeroed bytes, shared by the members. `ranks` are the members'
  // world ranks, for ringing their bells.
  BasicFlagBoard(std::byte* memory, int member, std::vector<int> ranks,
                 BasicDoorbells<Atomics>& doorbells);

  int member() const { return member_; }
  int members() const { return static_cast<int>(ranks_.size()); }
  // The current step. The generation is 0 if there is none.
  std::uint32_t generation() const { return generation_; }
  std::uint32_t sequence() const { return sequence_; }

  // Our inline payload for step `sequence` (kInlineBytes). Fill it before enter().
  std::byte* own_inline_payload(std::uint32_t sequence) {
    return slot(member_, sequence).inline_payload.data();
  }
  // Publishes our entry (phase 0, payload relaxed, then the word seq_cst) and rings. We must have
  // completed the previous step. This step is the current one from now on.
  void enter(std::uint32_t generation, std::uint32_t sequence, const Entry& entry);
  // Whether all members have entered the current step. Only then may identity() be read. If all
  // identities are equal, the rest of the entries may be read, too. If they differ, a member may
  // already have rolled back and entered again; its identity then reads as a number that no member
  // has published.
  bool all_entered();
  std::uint64_t identity(int member) const {
    return line(member).identity.load(std::memory_order_relaxed) ^ word();
  }
  Entry entry(int member) const;
  std::int64_t declared_count(int member) const {
    return line(member).declared_count.load(std::memory_order_relaxed);
  }
  std::uint64_t input(int member) const {
    return line(member).input.load(std::memory_order_relaxed);
  }
  const std::byte* inline_payload(int member) const { return line(member).inline_payload.data(); }

  // Publishes our phase in the current step (seq_cst), then rings. The phase only grows.
  void publish_phase(std::uint32_t phase);
  // A member's phase in the current step (seq_cst). Needs all_entered().
  std::uint32_t phase(int member) const;
  bool all_reached(std::uint32_t phase);

  // True if a member has left the job or a rank has died, so that the group ends. If it is false,
  // memory that others exposed for the current step was still exposed when we last read it.
  bool any_member_gone() const;

  // Whether the current step may be run. Every member calls it when it has seen that all entered
  // the same step, before it does any work in it. False if the group was closed before; then no
  // member ever runs this step.
  bool may_run();
  // For a member that must end in the middle of the current step and enters no further step. True:
  // no member has run the step or ever will. False: all have entered the same step, and some may
  // have completed it. All members get the same answer. Never waits for another member.
  bool try_close();
  // After try_close() has returned false: says that this member does not complete the current step
  // and touches no memory of it any more. Rings.
  void abandon();
  // Sets the phase from which on a member no longer touches memory that others have exposed for the
  // current step. Unknown until it is set.
  void set_last_phase(std::uint32_t phase) { last_phase_ = phase; }
  // Whether this member, if it lives, can still write memory that we have exposed for the current
  // step. Needs all_entered().
  bool may_still_write(int member) const;

  // Forgets the current step, because not all members entered the same one. Its number comes again
  // under a newer generation. No user memory may have been written for it.
  void roll_back();

 protected:
  // The member that was not done when we looked last, and what our `Waiting` says.
  struct Look {
    int missing = 0;
    std::uint32_t awaited = 0;
    bool is_told = true;  // whether we say whom we await
  };
  Look look_;  // not private, for the model explorer

 private:
  enum class State : std::uint8_t {
    kOpen,
    kProposed,  // a member wants to close the group from this sequence on
    kKept,      // the proposal came too late: all have entered the same step
    kClosed,    // the group is closed from this sequence on, for good
  };
  static std::uint64_t closing(State state, std::uint32_t sequence) {
    return std::uint64_t{sequence} << 2 | static_cast<std::uint64_t>(state);
  }
  static State state_of(std::uint64_t closing) { return static_cast<State>(closing & 3); }
  // The distance from the sequence in `closing` to the current one. Negative if the current one
  // comes first.
  std::int32_t ahead(std::uint64_t closing) const {
    return static_cast<std::int32_t>(sequence_ - static_cast<std::uint32_t>(closing >> 2));
  }
  bool all_entered_alike();
  template <class Done>  // bool(member)
  bool all_done(Done done);
  void await(std::uint32_t awaited);

  // The line of a member for the current step.
  Line& line(int member) const {
    CHECK(member >= 0 && member < members(), "a member's number lies inside its group");
    CHECK(generation_ != 0, "there must be a current step");
    return slot(member, sequence_);
  }
  Line& slot(int member, std::uint32_t sequence) const {
    return lines_[static_cast<std::uint32_t>(member) * Slots + sequence % Slots];
  }
  std::uint64_t word() const { return std::uint64_t{generation_} << 32 | sequence_; }
  void ring_others();

  static constexpr std::uint32_t kUnknownPhase = ~std::uint32_t{0};

  Line* lines_;
  Closing* closing_;
  Waiting* waiting_;
  int member_;
  std::vector<int> ranks_;
  BasicDoorbells<Atomics>* doorbells_;
  std::uint32_t generation_ = 0;
  std::uint32_t sequence_ = 0;
  std::uint32_t last_phase_ = kUnknownPhase;
};

template <class Atomics, std::uint32_t Slots>
BasicFlagBoard<Atomics, Slots>::BasicFlagBoard(std::byte* memory, int member,
                                               std::vector<int> ranks,
                                               BasicDoorbells<Atomics>& doorbells)
    : lines_(reinterpret_cast<Line*>(memory)),
      closing_(reinterpret_cast<Closing*>(lines_ + ranks.size() * Slots)),
      waiting_(reinterpret_cast<Waiting*>(closing_ + 1)),
      member_(member),
      ranks_(std::move(ranks)),
      doorbells_(&doorbells) {
  CHECK(member >= 0 && member < members(), "a member's number lies inside its group");
  CHECK(ranks_[static_cast<std::size_t>(member)] == doorbells.rank(),
        "the bells must be those of the member's own rank");
  look_.missing = (member + 1) % members();
  look_.is_told = members() > 2;  // of two, each can only await the other
}

template <class Atomics, std::uint32_t Slots>
void BasicFlagBoard<Atomics, Slots>::enter(std::uint32_t generation, std::uint32_t sequence,
                                           const Entry& entry) {
  CHECK(generation != 0, "generations start at 1");
  generation_ = generation;
  sequence_ = sequence;
  last_phase_ = kUnknownPhase;
  Line& mine = line(member_);
  mine.identity.store(entry.identity ^ word(), std::memory_order_relaxed);
  mine.declared_count.store(entry.declared_count, std::memory_order_relaxed);
  mine.input.store(entry.input, std::memory_order_relaxed);
  mine.output.store(entry.output, std::memory_order_relaxed);
  mine.phase.store(0, std::memory_order_relaxed);
  mine.word.store(word(), std::memory_order_seq_cst);
  ring_others();
}

template <class Atomics, std::uint32_t Slots>
bool BasicFlagBoard<Atomics, Slots>::all_entered() {
  const std::uint64_t expected = word();
  const bool all = all_done(
      [&](int other) { return line(other).word.load(std::memory_order_seq_cst) == expected; });
  // No member reads our other line any more: fetch it for writing while there is other work to do.
  if (all) __builtin_prefetch(&slot(member_, sequence_ + 1), 1);
  return all;
}

template <class Atomics, std::uint32_t Slots>
template <class Done>
bool BasicFlagBoard<Atomics, Slots>::all_done(Done done) {
  int other = look_.missing;
  for (int looks = 0; looks < members(); ++looks) {
    if (!done(other)) {
      look_.missing = other;
      const auto awaited = static_cast<std::uint32_t>(other) + 1;
      if (!look_.is_told || look_.awaited == awaited) return false;
      await(awaited);
      // It may have found us waiting for another member: look again.
      if (!done(other)) return false;
    }
    if (++other == members()) other = 0;
  }
  return true;
}

template <class Atomics, std::uint32_t Slots>
void BasicFlagBoard<Atomics, Slots>::await(std::uint32_t awaited) {
  look_.awaited = awaited;
  waiting_[member_].awaited.store(awaited, std::memory_order_seq_cst);
}

template <class Atomics, std::uint32_t Slots>
Entry BasicFlagBoard<Atomics, Slots>::entry(int member) const {
  const Line& theirs = line(member);
  return {.identity = identity(member),
          .declared_count = theirs.declared_count.load(std::memory_order_relaxed),
          .input = theirs.input.load(std::memory_order_relaxed),
          .output = theirs.output.load(std::memory_order_relaxed)};
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
bool BasicFlagBoard<Atomics, Slots>::all_reached(std::uint32_t phase) {
  return all_done([&](int other) { return this->phase(other) >= phase; });
}

template <class Atomics, std::uint32_t Slots>
bool BasicFlagBoard<Atomics, Slots>::any_member_gone() const {
  finish_loads();
  if (doorbells_->closed_by()) return true;
  if (doorbells_->leavers() == 0) return false;
  for (const int rank : ranks_)
    if (doorbells_->has_left(rank)) return true;
  return false;
}

template <class Atomics, std::uint32_t Slots>
bool BasicFlagBoard<Atomics, Slots>::all_entered_alike() {
  if (!all_entered()) return false;
  for (int other = 0; other < members(); ++other)
    if (identity(other) != identity(member_)) return false;
  return true;
}

// There are two cases. If this load comes after another member's proposal, the first exchange
// decides between us and that member. Otherwise, that member reads the words after us and finds
// that all have entered.
template <class Atomics, std::uint32_t Slots>
bool BasicFlagBoard<Atomics, Slots>::may_run() {
  std::uint64_t seen = closing_->word.load(std::memory_order_seq_cst);
  while (state_of(seen) == State::kProposed && ahead(seen) == 0)
    if (closing_->word.compare_exchange_strong(seen, closing(State::kKept, sequence_),
                                               std::memory_order_seq_cst))
      return true;
  // A member that closed a later sequence has completed this step.
  return state_of(seen) != State::kClosed || ahead(seen) < 0;
}

// The state of a sequence only grows, so the exchange never overwrites a newer state.
template <class Atomics, std::uint32_t Slots>
bool BasicFlagBoard<Atomics, Slots>::try_close() {
  CHECK(generation_ != 0, "there must be a current step");
  std::uint64_t seen = closing_->word.load(std::memory_order_seq_cst);
  for (;;) {
    if (state_of(seen) == State::kKept && ahead(seen) == 0) return false;
    // A member that proposed a later sequence has completed this step.
    if (state_of(seen) != State::kOpen && ahead(seen) < 0) return false;
    if (state_of(seen) == State::kClosed) return true;
    const std::uint64_t proposed = closing(State::kProposed, sequence_);
    if (seen != proposed &&
        !closing_->word.compare_exchange_strong(seen, proposed, std::memory_order_seq_cst))
      continue;
    // Check the words only now, after the proposal: an earlier check does not count.
    const State decided = all_entered_alike() ? State::kKept : State::kClosed;
    seen = proposed;
    if (closing_->word.compare_exchange_strong(seen, closing(decided, sequence_),
                                               std::memory_order_seq_cst))
      return decided == State::kClosed;
  }
}

template <class Atomics, std::uint32_t Slots>
void BasicFlagBoard<Atomics, Slots>::abandon() {
  await(0);  // from now on we may wait for what any of them does
  line(member_).abandoned.store(1, std::memory_order_seq_cst);
  ring_others();
}

template <class Atomics, std::uint32_t Slots>
bool BasicFlagBoard<Atomics, Slots>::may_still_write(int member) const {
  if (member == member_ || phase(member) >= last_phase_) return false;
  if (line(member).abandoned.load(std::memory_order_seq_cst) != 0) return false;
  return !doorbells_->has_left(ranks_[static_cast<std::size_t>(member)]);
}

template <class Atomics, std::uint32_t Slots>
void BasicFlagBoard<Atomics, Slots>::roll_back() {
  CHECK(generation_ != 0, "there must be a current step");
  // The line stays as it is: its generation is over, so its word matches no later step.
  generation_ = 0;
}

template <class Atomics, std::uint32_t Slots>
void BasicFlagBoard<Atomics, Slots>::ring_others() {
  const auto own = static_cast<std::uint32_t>(member_) + 1;
  for (int other = 0; other < members(); ++other) {
    const int rank = ranks_[static_cast<std::size_t>(other)];
    if (other == member_ || !doorbells_->is_asleep(rank)) continue;
    const auto awaited = waiting_[other].awaited.load(std::memory_order_seq_cst);
    if (awaited == 0 || awaited == own) doorbells_->wake(rank);
  }
}

using FlagBoard = BasicFlagBoard<HardwareAtomics>;

}  // namespace farandole
