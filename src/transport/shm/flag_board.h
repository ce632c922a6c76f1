// FlagBoard: the flags of one group in shared memory. Each member has two slots. A slot is one flag
// line with one writer, and has room for a little data beside the flags. A member enters a step
// only after it has completed the previous one, and no member completes a step before all have
// entered it. So if a member enters step k, all members have entered step k − 1 and no longer need
// anything of step k − 2. It may overwrite the line of step k − 2 and all memory of that slot,
// without counting which members are done. Generation and sequence are one word, which a member
// stores last. Sequences count modulo 2^32.
//
// If not all members entered the same step, the step is rolled back, and its sequence is used again
// with a newer generation. A slow member may then still expect the old entry. Each identity is
// therefore stored as its xor with the word, so that a new entry is never mistaken for the old one.
//
// A member that cannot continue publishes for which other member it waits, and only that other
// member wakes it. So with p sleeping members, a step takes about p wake-ups instead of p². A check
// of the members begins with the member that was missing at the previous check, so it costs one
// load while this member is still missing. The member that is last in one step is often the last in
// the next step, too.
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
inline constexpr std::uint64_t kNoLocation = ~std::uint64_t{0};

// What a member publishes when it enters a step.
struct Entry {
  std::uint64_t identity = 0;          // digest of what the step does; members compare it
  std::int64_t declared_count = 0;     // bytes or rows that the member brings; may differ
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
    alignas(
        16) std::array<std::byte, kInlineBytes> inline_payload;  // begins in the word's cache line
  };

  static_assert(sizeof(Line) % kFlagLineBytes == 0);

  // The group has one closing word; it comes after the lines.
  struct alignas(kFlagLineBytes) Closing {
    Atomic<std::uint64_t> word;  // sequence << 2 | State; 0 until a member calls try_close()
  };

  // Each member has a `Waiting`, after the closing word, and only this member writes it. It is not
  // in the member's flag line, because the others poll that line.
  struct alignas(kFlagLineBytes) Waiting {
    Atomic<std::uint32_t> awaited;  // 1 + the awaited member; 0: this member waits for all
  };

  static std::size_t bytes_needed(int members) {
    return static_cast<std::size_t>(members) * (Slots * sizeof(Line) + sizeof(Waiting)) +
           sizeof(Closing);
  }

  // `memory` is bytes_needed(members) bytes that the members share and that are zero at first.
  // `ranks` are the members' world ranks, for ringing their doorbells.
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
  // Publishes our entry with phase 0 (its fields relaxed, then the word seq_cst) and rings. We must
  // have completed the previous step. From now on, this step is the current step.
  void enter(std::uint32_t generation, std::uint32_t sequence, const Entry& entry);
  // Whether all members have entered the current step. Only then may identity() be called. The
  // other fields of the entries may be read only if all identities are equal. If they differ, a
  // member may already have rolled back and entered again; then identity() returns a number that
  // equals no identity of this step.
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
  // A member's phase in the current step (seq_cst). Call it only after all_entered() returned true.
  std::uint32_t phase(int member) const;
  bool all_reached(std::uint32_t phase);
  // Whether one member has reached the phase. Like the other checks, this function publishes for
  // which member we wait.
  bool has_reached(int member, std::uint32_t phase);

  // True if a member has left the job or a rank has died, so that the group ends. If false, the
  // memory that other members exposed for the current step was still exposed when we last read it.
  bool any_member_gone() const;

  // Whether the current step may be run. A member calls it after it has seen that all entered the
  // same step, and before it does any work in this step. False if the group was closed before; then
  // no member ever runs this step.
  bool may_run();
  // A member calls this if it must end in the middle of the current step and will enter no further
  // step. True: no member has run the step or ever will. False: all have entered the same step, and
  // some may have completed it. All members get the same answer. Never waits for another member.
  bool try_close();
  // Publishes that this member will not complete the current step and no longer touches any memory
  // of it, and rings. Call it after try_close() has returned false.
  void abandon();
  // Says that members touch exposed memory of the current step only before this phase. Until
  // this is called, may_still_write() assumes that there is no such phase.
  void set_last_phase(std::uint32_t phase) { last_phase_ = phase; }
  // Whether a member, if it is alive, may still write memory that we have exposed for the current
  // step. Call it only after all_entered() returned true.
  bool may_still_write(int member) const;

  // Forgets the current step, because not all members entered the same step. Its sequence is used
  // again with a newer generation. No user memory may have been written for it.
  void roll_back();

 protected:
  // The state of our checks of the other members.
  struct CheckState {
    int missing = 0;                // the member that was missing at the last check
    std::uint32_t awaited = 0;      // the value that we have stored in our `Waiting`
    bool publishes_awaited = true;  // whether we publish the member that we await
  };
  CheckState check_state_;  // not private, for the model explorer

 private:
  enum class State : std::uint8_t {
    kOpen,
    kProposed,  // a member wants to close the group from this sequence on
    kKept,      // the proposal came too late: all had entered the same step
    kClosed,    // the group is permanently closed from this sequence on
  };
  static std::uint64_t closing_value(State state, std::uint32_t sequence) {
    return std::uint64_t{sequence} << 2 | static_cast<std::uint64_t>(state);
  }
  static State state_of(std::uint64_t closing) { return static_cast<State>(closing & 3); }
  // The current sequence minus the sequence in `closing`, modulo 2^32. Negative if the current one
  // is earlier.
  std::int32_t sequence_distance(std::uint64_t closing) const {
    return static_cast<std::int32_t>(sequence_ - static_cast<std::uint32_t>(closing >> 2));
  }
  bool all_entered_same_step();
  template <class Done>  // bool(member)
  bool all_done(Done done);
  void publish_awaited(std::uint32_t awaited);

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
  check_state_.missing = (member + 1) % members();
  // With only two members, we always wait for the other member, so we need not publish that.
  check_state_.publishes_awaited = members() > 2;
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
  // No member reads the line of our other slot any more, so fetch it for writing while there is
  // other work to do.
  if (all) __builtin_prefetch(&slot(member_, sequence_ + 1), 1);
  return all;
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
      // The other member may have stored its flag, and not woken us, before we published that we
      // wait for it. So check again.
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

// There are two cases. If another member proposes before this load, the first compare-and-swap
// decides between us and that member. If it proposes after this load, it then reads the words of
// the lines and finds that all have entered.
template <class Atomics, std::uint32_t Slots>
bool BasicFlagBoard<Atomics, Slots>::may_run() {
  std::uint64_t closing_word = closing_->word.load(std::memory_order_seq_cst);
  while (state_of(closing_word) == State::kProposed && sequence_distance(closing_word) == 0)
    if (closing_->word.compare_exchange_strong(closing_word, closing_value(State::kKept, sequence_),
                                               std::memory_order_seq_cst))
      return true;
  // A member that closed a later sequence has completed this step.
  return state_of(closing_word) != State::kClosed || sequence_distance(closing_word) < 0;
}

// The state of a sequence never goes back to an earlier state, so the compare-and-swap never
// overwrites a newer state.
template <class Atomics, std::uint32_t Slots>
bool BasicFlagBoard<Atomics, Slots>::try_close() {
  CHECK(generation_ != 0, "there must be a current step");
  std::uint64_t closing_word = closing_->word.load(std::memory_order_seq_cst);
  for (;;) {
    if (state_of(closing_word) == State::kKept && sequence_distance(closing_word) == 0)
      return false;
    // A member that proposed a later sequence has completed this step.
    if (state_of(closing_word) != State::kOpen && sequence_distance(closing_word) < 0) return false;
    if (state_of(closing_word) == State::kClosed) return true;
    const std::uint64_t proposed = closing_value(State::kProposed, sequence_);
    if (closing_word != proposed &&
        !closing_->word.compare_exchange_strong(closing_word, proposed, std::memory_order_seq_cst))
      continue;
    // Check the words of the lines only after the proposal, because may_run() relies on this order.
    const State decided = all_entered_same_step() ? State::kKept : State::kClosed;
    closing_word = proposed;
    if (closing_->word.compare_exchange_strong(closing_word, closing_value(decided, sequence_),
                                               std::memory_order_seq_cst))
      return decided == State::kClosed;
  }
}

template <class Atomics, std::uint32_t Slots>
void BasicFlagBoard<Atomics, Slots>::abandon() {
  publish_awaited(0);  // from now on every other member wakes us
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
  // The line stays as it is. Its generation is over, so its word matches no later step.
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
