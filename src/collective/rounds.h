// Rounds: what algorithms with one wait per round share. In a round every member shows a part of
// what it brings, and takes what the others show for it. A part is shown in staging memory, or,
// when it is small, inside the flag line; a member whose input the others can see shows nothing at
// all.
//
// Phase w of a member = "my part of round w is staged" (0 is the entry itself). A member goes, for
// w = 0, 1, …:  stage w + 1; publish w + 1; wait all ≥ w; take round w. All members do all rounds,
// also those that have nothing left to show or to take.
// The rounds live in the parts of the staging memory in turn, and there are four of them at least.
// stage(w + 1) overwrites round w − 3 or an earlier one. We do it after our round w − 1, in which
// all were at ≥ w − 1, and they publish w − 1 after their round w − 3: everybody has taken what we
// showed in round w − 3. So no further phase is needed. The slot is used again in the step after
// the next, which nobody enters before all have completed this one.
// Where a member has exposed its input, all publish one more phase when they have taken everything,
// and all wait for it: the exposer, because its owner may change the input at once, and the others,
// because who is done may leave at once, which ends the waiting of all. A member that finds the
// group at its end before does not publish it.
#pragma once

#include <cstdint>
#include <optional>

#include "base/check.h"
#include "collective/entry_barrier.h"
#include "collective/staging.h"

namespace farandole {

// One per step; one thread at a time (the holder of the progress lock). `Way` is an EntryBarrier,
// or, for the model explorer, a BasicEntryBarrier.
template <class Way>
class BasicRounds {
 public:
  explicit BasicRounds(const Way& entry_barrier) : entry_barrier_(entry_barrier) {}

  const Way& entry_barrier() const { return entry_barrier_; }

  // A bounded amount of work; see Progress. The algorithm has
  //   void stage(round): shows our part of a round; round 0 before we enter;
  //   void enter(Way&): says on entering what the others must know;
  //   std::optional<std::int64_t> all_arrived(): all have entered. How many rounds there are, the
  //     same on all members; nothing when an entry makes no sense;
  //   bool take(round): what the others show for us; false while some of this round is left.
  template <class Algorithm>
  Progress advance(Algorithm& algorithm);

 private:
  enum class State : std::uint8_t { kEnter, kArrive, kStage, kTake, kGiveBack, kGetBack, kOver };

  std::uint32_t last_phase() const { return static_cast<std::uint32_t>(rounds_); }
  template <class Algorithm>
  Progress arrive(Algorithm& algorithm);
  template <class Algorithm>
  Progress take(Algorithm& algorithm);
  Progress end_rounds();
  Progress give_back();
  Progress get_back();

  Way entry_barrier_;
  std::int64_t rounds_ = 0;
  std::int64_t round_ = 0;
  State state_ = State::kEnter;
};

// A small step goes from its entry to its end in one call, if the others are there.
template <class Way>
template <class Algorithm>
Progress BasicRounds<Way>::advance(Algorithm& algorithm) {
  switch (state_) {
    case State::kEnter:
      algorithm.stage(0);
      algorithm.enter(entry_barrier_);
      state_ = State::kArrive;
      [[fallthrough]];
    case State::kArrive:
      return arrive(algorithm);
    case State::kStage:
      algorithm.stage(round_ + 1);
      entry_barrier_.board().publish_phase(static_cast<std::uint32_t>(round_ + 1));
      state_ = State::kTake;
      return Progress::kMoved;
    case State::kTake:
      return take(algorithm);
    case State::kGiveBack:
      return give_back();
    case State::kGetBack:
      return get_back();
    case State::kOver:
      break;
  }
  CHECK(false, "a step that is over is not advanced");
  return Progress::kDone;
}

template <class Way>
template <class Algorithm>
Progress BasicRounds<Way>::arrive(Algorithm& algorithm) {
  if (const Progress arrived = entry_barrier_.check_arrivals(); arrived != Progress::kDone)
    return arrived;
  const std::optional<std::int64_t> rounds = algorithm.all_arrived();
  if (!rounds) return Progress::kMismatch;
  rounds_ = *rounds;
  if (rounds_ == 0) return end_rounds();
  state_ = rounds_ > 1 ? State::kStage : State::kTake;
  return rounds_ > 1 ? Progress::kMoved : take(algorithm);
}

template <class Way>
template <class Algorithm>
Progress BasicRounds<Way>::take(Algorithm& algorithm) {
  // Round 0 was staged before the entry.
  if (round_ > 0 && !entry_barrier_.board().all_reached(static_cast<std::uint32_t>(round_)))
    return Progress::kPending;
  if (!algorithm.take(round_)) return Progress::kMoved;
  ++round_;
  if (round_ == rounds_) return end_rounds();
  state_ = round_ + 1 < rounds_ ? State::kStage : State::kTake;
  return Progress::kMoved;
}

template <class Way>
Progress BasicRounds<Way>::end_rounds() {
  if (rounds_ > 0 && entry_barrier_.somebody_exposes_input()) {
    state_ = State::kGiveBack;
    return give_back();
  }
  state_ = State::kOver;
  return Progress::kDone;
}

template <class Way>
Progress BasicRounds<Way>::give_back() {
  if (entry_barrier_.is_exposer_gone()) return Progress::kPending;
  entry_barrier_.board().publish_phase(last_phase());
  state_ = State::kGetBack;
  return get_back() == Progress::kDone ? Progress::kDone : Progress::kMoved;
}

template <class Way>
Progress BasicRounds<Way>::get_back() {
  if (!entry_barrier_.board().all_reached(last_phase())) return Progress::kPending;
  state_ = State::kOver;
  return Progress::kDone;
}

using Rounds = BasicRounds<EntryBarrier>;

}  // namespace farandole
