// FlagBoard: the flags of one group in shared memory. Each member has two slots. A slot is one flag
// line with one writer; it also has room for a small payload. A member enters a step only after it
// has completed the previous step, and a member completes a step only after all have entered it. So
// if a member enters step k, all members have entered step k − 1 and no longer need the memory of
// step k − 2. The member may overwrite the line and all memory of the slot of step k − 2, without
// waiting for acknowledgements of the other members. Generation and sequence are one word, which a
// member stores last. Sequences count modulo 2^32.
//
// If not all members entered the same step, the step is rolled back, and its sequence is used again
// with a newer generation. A slow member may then still wait for the old entry. Therefore each
// identity is stored as its xor with the word of generation and sequence, so that a new entry is
// never mistaken for the old entry.
//
// A member that must wait publishes which other member it waits for, and only this other member
// wakes it. So with p sleeping members, a step takes about p wake-ups instead of p². A check of all
// members begins with the member that was missing at the previous check. So a check costs only one
// load while this member is still missing. The slowest member of one step is often also the slowest
// in the next step.
//
// The flag board also lets the members agree on the end of a group. If a member must end in the
// middle of a step, it needs to know whether the other members may still run this step. try_close()
// and may_run() decide this once for all members, by compare-and-swap on one shared word.
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
// The number of payload bytes that fit into a flag line.
inline constexpr std::size_t kInlineBytes = 1104;
// The location that stands for memory that the other members cannot see.
inline constexpr std::uint64_t kNoLocation = ~std::uint64_t{0};

// The data that a member publishes when it enters a step.
struct Entry {
  std::uint64_t identity = 0;          // digest of the step; members compare it
  std::int64_t declared_count = 0;     // bytes or rows of the member; may differ
  std::uint64_t input = kNoLocation;   // the location of its input, from SharedHeap::location_of()
  std::uint64_t output = kNoLocation;  // the location of its output
};

// Only one thread at a time may use it: the holder of the progress lock. Generations start at 1, so
// a line of zeros is not an entry.
template <class Atomics, std::uint32_t Slots = kSlots>
class BasicFlagBoard {
 public:
  template <class T>
  using Atomic = typename Atomics::template Atomic<T>;

  struct alignas(kFlagLineBytes) Line {
    Atomic<std::uint64_t> word;      // generation << 32 | sequence
    Atomic<std::uint64_t> identity;  // the entry's identity ^ word
    Atomic<std::int64_t> declared_count;
    Atomic<std::uint64_t> input;
    Atomic<std::uint64_t> output;
    Atomic<std::uint32_t> phase;      // progress in the step, as its algorithm defines it
    Atomic<std::uint32_t> abandoned;  // 1: this member no longer touches any memory of this step
    // The payload begins in the same cache line as `word`.
    alignas(16) std::array<std::byte, kInlineBytes> inline_payload;
  };

  static_assert(sizeof(Line) % kFlagLineBytes == 0);

  // The group has one closing word; it comes after the lines.
  struct alignas(kFlagLineBytes) Closing {
    Atomic<std::uint64_t> word;  // sequence << 2 | ClosingState; 0 until a member calls try_close()
  };

  // Each member has one `Waiting` after the closing word, and only this member writes it. `Waiting`
  // is not part of the member's flag line, because the other members poll the flag line.
  struct alignas(kFlagLineBytes) Waiting {
    Atomic<std::uint32_t> awaited;  // 1 + the awaited member; 0: this member waits for all
  };

  static std::size_t bytes_needed(int members) {
    return static_cast<std::size_t>(members) * (Slots * sizeof(Line) + sizeof(Waiting)) +
           sizeof(Closing);
  }

  // `memory` is bytes_needed(members) bytes that the members share and that are zero at first.
  // `ranks` has the world rank of each member, because the doorbells are numbered by world rank.
  BasicFlagBoard(std::byte* memory, int member, std::vector<int> ranks,
                 BasicDoorbells<Atomics>& doorbells);

  int member() const { return member_; }
  int members() const { return static_cast<int>(ranks_.size()); }
  // The current step. The generation is 0 if there is no current step.
  std::uint32_t generation() const { return generation_; }
  std::uint32_t sequence() const { return sequence_; }

  // Our inline payload for step `sequence` (kInlineBytes). Fill it before enter().
  std::byte* own_inline_payload(std::uint32_t sequence) {
    return slot(member_, sequence).inline_payload.data();
  }
  // Publishes our entry with phase 0, and rings the other members. We must have completed the
  // previous step. The fields of the entry are stored relaxed, and then the word is stored seq_cst.
  // After this call, this step is the current step.
  void enter(std::uint32_t generation, std::uint32_t sequence, const Entry& entry);
  // Whether all members have entered the current step. Call identity() only after all_entered() has
  // returned true. Read the other fields of the entries only if all identities are equal. If they
  // differ, a member may already have rolled back and entered again; identity() then returns a
  // number that differs from all identities of this step.
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

  // Publishes our phase in the current step (a seq_cst store), then rings the other members. The
  // phase never decreases.
  void publish_phase(std::uint32_t phase);
  // Returns a member's phase in the current step (a seq_cst load). Call it only after all_entered()
  // returned true.
  std::uint32_t phase(int member) const;
  bool all_reached(std::uint32_t phase);
  // Whether one member has reached the phase. Like the other checks, this function publishes for
  // which member we wait.
  bool has_reached(int member, std::uint32_t phase);

  // Whether a member has left the job or a rank has died, so that the group ends. If the result is
  // false, the memory that other members have exposed for the current step was still exposed during
  // all our earlier reads.
  bool any_member_gone() const;

  // Whether the members may run the current step. A member calls it after it has seen that all have
  // entered the same step, and before it does any work in this step. If false, the group was closed
  // before this step, and no member ever runs it.
  bool may_run();
  // A member calls this if it must end in the middle of the current step and will enter no further
  // step. Returns true if no member has run this step and no member will run it. Returns false if
  // all members have entered the same step; some members may then have completed it. All members
  // get the same answer. Does not wait for other members.
  bool try_close();
  // Publishes that this member will not complete the current step and no longer accesses the memory
  // of this step, and rings the other members. Call it after try_close() has returned false.
  void abandon();
  // Declares that members access exposed memory of the current step only before `phase`. Before
  // this call, may_still_write() assumes that there is no such phase.
  void set_last_phase(std::uint32_t phase) { last_phase_ = phase; }
  // Whether a living member may still write memory that we have exposed for the current step. Call
  // it only after all_entered() has returned true.
  bool may_still_write(int member) const;

  // Forgets the current step, because not all members have entered the same step. Its sequence is
  // used again with a newer generation. No user memory may have been written for this step.
  void roll_back();

 protected:
  // The state of our repeated checks of all members.
  struct CheckState {
    int missing = 0;                // the member that was missing at the last check
    std::uint32_t awaited = 0;      // the value in our `Waiting`
    bool publishes_awaited = true;  // whether we publish which member we wait for
  };
  CheckState check_state_;  // protected, because the model explorer needs it

 private:
  enum class ClosingState : std::uint8_t {
    kOpen,
    kProposed,  // a member proposes that no member runs a step of this or a later sequence
    kKept,      // the proposal came too late: all members had entered the same step
    kClosed,    // no member will ever run a step of this or a later sequence
  };
  static std::uint64_t closing_value(ClosingState state, std::uint32_t sequence) {
    return std::uint64_t{sequence} << 2 | static_cast<std::uint64_t>(state);
  }
  static ClosingState state_of(std::uint64_t closing) {
    return static_cast<ClosingState>(closing & 3);
  }
  // Returns the current sequence minus the sequence in `closing`, modulo 2^32. Negative if the
  // current sequence is earlier.
  std::int32_t sequence_distance(std::uint64_t closing) const {
    return static_cast<std::int32_t>(sequence_ - static_cast<std::uint32_t>(closing >> 2));
  }
  bool all_entered_same_step();
  template <class Done>  // bool(member)
  bool all_done(Done done);
  void publish_awaited(std::uint32_t awaited);

  // Returns the line of a member for the current step.
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
  check_state_.missing = (member + 1) % members();
  // With two members, we always wait for the other member, so we need not publish it.
  check_state_.publishes_awaited = members() > 2;
}

template <class Atomics, std::uint32_t Slots>
void BasicFlagBoard<Atomics, Slots>::enter(std::uint32_t generation, std::uint32_t sequence,
                                           const Entry& entry) {
  CHECK(generation != 0, "generations start at 1");
  generation_ = generation;
  sequence_ = sequence;
  last_phase_ = kUnknownPhase;
  Line& own_line = line(member_);
  own_line.identity.store(entry.identity ^ word(), std::memory_order_relaxed);
  own_line.declared_count.store(entry.declared_count, std::memory_order_relaxed);
  own_line.input.store(entry.input, std::memory_order_relaxed);
  own_line.output.store(entry.output, std::memory_order_relaxed);
  own_line.phase.store(0, std::memory_order_relaxed);
  own_line.word.store(word(), std::memory_order_seq_cst);
  ring_others();
}

template <class Atomics, std::uint32_t Slots>
bool BasicFlagBoard<Atomics, Slots>::all_entered() {
  const std::uint64_t expected_word = word();
  const bool all_have_entered = all_done(
      [&](int other) { return line(other).word.load(std::memory_order_seq_cst) == expected_word; });
  // No member reads the line of our other slot any more. Prefetch that line for writing, because we
  // write it in the next step.
  if (all_have_entered) __builtin_prefetch(&slot(member_, sequence_ + 1), 1);
  return all_have_entered;
}

template <class Atomics, std::uint32_t Slots>
template <class Done>
bool BasicFlagBoard<Atomics, Slots>::all_done(Done done) {
  int other = check_state_.missing;
  for (int checks = 0; checks < members(); ++checks) {
    if (!done(other)) {
      check_state_.missing = other;
      const auto awaited = static_cast<std::uint32_t>(other) + 1;
      if (!check_state_.publishes_awaited || check_state_.awaited == awaited) return false;
      publish_awaited(awaited);
      // The other member may have stored its flag before we published that we wait for it. In this
      // case, the other member has not woken us. So check again.
      if (!done(other)) return false;
    }
    if (++other == members()) other = 0;
  }
  return true;
}

template <class Atomics, std::uint32_t Slots>
void BasicFlagBoard<Atomics, Slots>::publish_awaited(std::uint32_t awaited) {
  check_state_.awaited = awaited;
  waiting_[member_].awaited.store(awaited, std::memory_order_seq_cst);
}

template <class Atomics, std::uint32_t Slots>
Entry BasicFlagBoard<Atomics, Slots>::entry(int member) const {
  const Line& member_line = line(member);
  return {.identity = identity(member),
          .declared_count = member_line.declared_count.load(std::memory_order_relaxed),
          .input = member_line.input.load(std::memory_order_relaxed),
          .output = member_line.output.load(std::memory_order_relaxed)};
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
bool BasicFlagBoard<Atomics, Slots>::has_reached(int member, std::uint32_t phase) {
  return all_done([&](int other) { return other != member || this->phase(other) >= phase; });
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
bool BasicFlagBoard<Atomics, Slots>::all_entered_same_step() {
  if (!all_entered()) return false;
  for (int other = 0; other < members(); ++other)
    if (identity(other) != identity(member_)) return false;
  return true;
}

// There are two cases. If another member has proposed to close the group before we load the closing
// word, the first compare-and-swap decides between us and that member. If a member proposes after
// our load, it reads the words of the lines after its proposal and finds that all members have
// entered.
template <class Atomics, std::uint32_t Slots>
bool BasicFlagBoard<Atomics, Slots>::may_run() {
  std::uint64_t closing_word = closing_->word.load(std::memory_order_seq_cst);
  while (state_of(closing_word) == ClosingState::kProposed && sequence_distance(closing_word) == 0)
    if (closing_->word.compare_exchange_strong(
            closing_word, closing_value(ClosingState::kKept, sequence_), std::memory_order_seq_cst))
      return true;
  // The member that has closed a later sequence has completed this step, so this step may run.
  return state_of(closing_word) != ClosingState::kClosed || sequence_distance(closing_word) < 0;
}

// The state of a sequence never goes back to an earlier state, so the compare-and-swap never
// overwrites a newer state.
template <class Atomics, std::uint32_t Slots>
bool BasicFlagBoard<Atomics, Slots>::try_close() {
  CHECK(generation_ != 0, "there must be a current step");
  std::uint64_t closing_word = closing_->word.load(std::memory_order_seq_cst);
  for (;;) {
    if (state_of(closing_word) == ClosingState::kKept && sequence_distance(closing_word) == 0)
      return false;
    // The member that has proposed a later sequence has completed this step, so it is too late to
    // close this step.
    if (state_of(closing_word) != ClosingState::kOpen && sequence_distance(closing_word) < 0)
      return false;
    if (state_of(closing_word) == ClosingState::kClosed) return true;
    const std::uint64_t proposed_word = closing_value(ClosingState::kProposed, sequence_);
    if (closing_word != proposed_word &&
        !closing_->word.compare_exchange_strong(closing_word, proposed_word,
                                                std::memory_order_seq_cst))
      continue;
    // Check the words of the lines only after the proposal, because may_run() relies on this order.
    const ClosingState decided_state =
        all_entered_same_step() ? ClosingState::kKept : ClosingState::kClosed;
    closing_word = proposed_word;
    if (closing_->word.compare_exchange_strong(
            closing_word, closing_value(decided_state, sequence_), std::memory_order_seq_cst))
      return decided_state == ClosingState::kClosed;
  }
}

template <class Atomics, std::uint32_t Slots>
void BasicFlagBoard<Atomics, Slots>::abandon() {
  publish_awaited(0);  // from now on, every other member wakes us
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
  // Our line keeps its entry. The generation of this entry is over, so the word of the line does
  // not match any later step.
  generation_ = 0;
}

template <class Atomics, std::uint32_t Slots>
void BasicFlagBoard<Atomics, Slots>::ring_others() {
  const auto own_awaited_value = static_cast<std::uint32_t>(member_) + 1;
  for (int other = 0; other < members(); ++other) {
    const int rank = ranks_[static_cast<std::size_t>(other)];
    if (other == member_ || !doorbells_->is_asleep(rank)) continue;
    const auto awaited = waiting_[other].awaited.load(std::memory_order_seq_cst);
    if (awaited == 0 || awaited == own_awaited_value) doorbells_->wake(rank);
  }
}

using FlagBoard = BasicFlagBoard<HardwareAtomics>;

}  // namespace farandole
