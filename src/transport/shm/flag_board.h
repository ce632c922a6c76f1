// FlagBoard: the flags of one group in shared memory. Two slots per member; a slot is one flag line
// with one writer, and room for a little data beside the flags. A member enters its steps one after
// another, each when it has completed the one before. Nobody completes a step before all have
// entered it, so whoever enters step k knows that all have entered k − 1 and need nothing of k − 2
// any more: the line and whatever belongs to its slot may be overwritten, and nobody counts who is
// done. Generation and sequence are one word, published last. Sequences count modulo 2^32.
// A step that not all have entered alike may be rolled back, and come again under a newer
// generation while somebody still looks at the old entry: so the identity is stored mixed with its
// word, and what is entered again never looks like what was entered before.
// The members also agree here on how a group ends. A member that ends in the middle of a step must
// know whether the others may still run this step: try_close() and may_run() decide that once for
// all of them, by one word that everybody exchanges by compare and swap.
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
// The location of memory that the others cannot see.
inline constexpr std::uint64_t kNowhere = ~std::uint64_t{0};

// What a member says when it enters a step.
struct Entry {
  std::uint64_t identity = 0;       // compared for equality between members
  std::int64_t declared_count = 0;  // what may differ per rank: bytes of an all-gather
  std::uint64_t input = kNowhere;   // where its memory is, as SharedHeap::location_of() says it
  std::uint64_t output = kNowhere;  // the same
};

// One thread at a time (the holder of the progress lock). Generations start at 1: a zero line means
// nothing.
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
    Atomic<std::uint32_t> phase;      // windows staged, reduced: the algorithm's own count
    Atomic<std::uint32_t> abandoned;  // 1: this member no longer touches anything of this step
    alignas(
        16) std::array<std::byte, kInlineBytes> inline_payload;  // begins in the word's cache line
  };

  static_assert(sizeof(Line) % kFlagLineBytes == 0);

  // Behind the lines, one for all members.
  struct alignas(kFlagLineBytes) Closing {
    Atomic<std::uint64_t> word;  // sequence << 2 | State; 0 as long as nobody wants to end a step
  };

  static std::size_t bytes_needed(int members) {
    return static_cast<std::size_t>(members) * Slots * sizeof(Line) + sizeof(Closing);
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

  // Our memory inside the line of step `sequence`, kInlineBytes, to be filled before enter().
  std::byte* own_inline_payload(std::uint32_t sequence) {
    return slot(member_, sequence).inline_payload.data();
  }
  // Publishes our entry (phase 0, payload relaxed, then the word seq_cst) and rings. We must have
  // completed the step before. From here on this is the current step.
  void enter(std::uint32_t generation, std::uint32_t sequence, const Entry& entry);
  // Everybody entered the current step. Only then may identity() be read, and, if it is the same of
  // all members, everything else. If not, somebody may have rolled back by now, and entered again:
  // its identity is then none that it or anybody else has said here.
  bool all_entered() const;
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

  // Our progress in the current step, only ever growing; seq_cst, then rings.
  void publish_phase(std::uint32_t phase);
  // A member's phase in the current step (seq_cst). Needs all_entered().
  std::uint32_t phase(int member) const;
  bool all_reached(std::uint32_t phase) const;

  // A member has left its job, or a rank has died: the group ends. False: whoever exposed memory to
  // us for the current step had not got it back when we last read of it.
  bool somebody_is_gone() const;

  // Whether the current step may be run; to be asked by every member that has seen that all have
  // entered it alike, before it does anything in it. False: the group was closed before that, so
  // no member ever runs this step.
  bool may_run();
  // For a member that ends in the middle of the current step, which it never enters again. True: no
  // member has run the step or ever will. False: all have entered it alike, and some may have
  // completed it. Each member gets the same answer. Never waits for another member.
  bool try_close();
  // This member neither completes the current step nor touches anything of it again; after
  // try_close() said false. Rings.
  void abandon();
  // The phase from which on a member no longer touches what others have exposed for the current
  // step. Unknown until it is set.
  void set_last_phase(std::uint32_t phase) { last_phase_ = phase; }
  // What we have exposed for the current step can still be written by this member, if it lives.
  // Needs all_entered().
  bool may_still_write(int member) const;

  // The current step was not entered by all alike: forget it. Its number comes again under a newer
  // generation. Nothing may have been written for it.
  void roll_back();

 private:
  enum class State : std::uint8_t {
    kOpen,
    kProposed,  // some member wants to close the group from this sequence on
    kKept,      // the proposal came too late: all have entered this sequence alike
    kClosed,    // from this sequence on, for good
  };
  static std::uint64_t closing(State state, std::uint32_t sequence) {
    return std::uint64_t{sequence} << 2 | static_cast<std::uint64_t>(state);
  }
  static State state_of(std::uint64_t closing) { return static_cast<State>(closing & 3); }
  // How many steps the current one comes after the sequence in `closing`; negative: it is before.
  std::int32_t ahead(std::uint64_t closing) const {
    return static_cast<std::int32_t>(sequence_ - static_cast<std::uint32_t>(closing >> 2));
  }
  bool all_entered_alike() const;

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
      member_(member),
      ranks_(std::move(ranks)),
      doorbells_(&doorbells) {
  CHECK(member >= 0 && member < members(), "a member's number lies inside its group");
  CHECK(ranks_[static_cast<std::size_t>(member)] == doorbells.rank(),
        "the bells must be those of the member's own rank");
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
bool BasicFlagBoard<Atomics, Slots>::all_entered() const {
  const std::uint64_t expected = word();
  for (int other = 0; other < members(); ++other)
    if (line(other).word.load(std::memory_order_seq_cst) != expected) return false;
  // Nobody looks at our other line any more: it is taken back while there is other work to do.
  __builtin_prefetch(&slot(member_, sequence_ + 1), 1);
  return true;
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
bool BasicFlagBoard<Atomics, Slots>::all_reached(std::uint32_t phase) const {
  for (int other = 0; other < members(); ++other)
    if (this->phase(other) < phase) return false;
  return true;
}

template <class Atomics, std::uint32_t Slots>
bool BasicFlagBoard<Atomics, Slots>::somebody_is_gone() const {
  finish_loads();
  if (doorbells_->closed_by()) return true;
  if (doorbells_->leavers() == 0) return false;
  for (const int rank : ranks_)
    if (doorbells_->has_left(rank)) return true;
  return false;
}

template <class Atomics, std::uint32_t Slots>
bool BasicFlagBoard<Atomics, Slots>::all_entered_alike() const {
  if (!all_entered()) return false;
  for (int other = 0; other < members(); ++other)
    if (identity(other) != identity(member_)) return false;
  return true;
}

// Either this load comes after a member has proposed, and then the first exchange decides between
// us and that member; or that member looks at the words after us, and finds all of them entered.
template <class Atomics, std::uint32_t Slots>
bool BasicFlagBoard<Atomics, Slots>::may_run() {
  std::uint64_t seen = closing_->word.load(std::memory_order_seq_cst);
  while (state_of(seen) == State::kProposed && ahead(seen) == 0)
    if (closing_->word.compare_exchange_strong(seen, closing(State::kKept, sequence_),
                                               std::memory_order_seq_cst))
      return true;
  // Whoever closed a later sequence has completed this step.
  return state_of(seen) != State::kClosed || ahead(seen) < 0;
}

// The state of one sequence only ever grows, so an exchange never succeeds on an older state.
template <class Atomics, std::uint32_t Slots>
bool BasicFlagBoard<Atomics, Slots>::try_close() {
  CHECK(generation_ != 0, "there must be a current step");
  std::uint64_t seen = closing_->word.load(std::memory_order_seq_cst);
  for (;;) {
    if (state_of(seen) == State::kKept && ahead(seen) == 0) return false;
    // Whoever proposed a later sequence has completed this step.
    if (state_of(seen) != State::kOpen && ahead(seen) < 0) return false;
    if (state_of(seen) == State::kClosed) return true;
    const std::uint64_t proposed = closing(State::kProposed, sequence_);
    if (seen != proposed &&
        !closing_->word.compare_exchange_strong(seen, proposed, std::memory_order_seq_cst))
      continue;
    // Only words that are looked at after the proposal count.
    const State decided = all_entered_alike() ? State::kKept : State::kClosed;
    seen = proposed;
    if (closing_->word.compare_exchange_strong(seen, closing(decided, sequence_),
                                               std::memory_order_seq_cst))
      return decided == State::kClosed;
  }
}

template <class Atomics, std::uint32_t Slots>
void BasicFlagBoard<Atomics, Slots>::abandon() {
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
  // The line may stay as it is: its generation is over, so its word matches no step to come.
  generation_ = 0;
}

template <class Atomics, std::uint32_t Slots>
void BasicFlagBoard<Atomics, Slots>::ring_others() {
  for (const int rank : ranks_)
    if (rank != doorbells_->rank()) doorbells_->ring(rank);
}

using FlagBoard = BasicFlagBoard<HardwareAtomics>;

}  // namespace farandole
