// Rounds: the shared part of all algorithms that have one wait per round. In a round, every member
// publishes a part of its data, and consumes (copies or reduces) what the others publish for it. It
// publishes the part in staging memory, or in the flag line if the part is small. A member that
// exposes its input publishes nothing: the others read the input in place.
//
// A member publishes phase w when its part of round w is staged; phase 0 is the entry itself. For w
// = 0, 1, …, each member does this:
//   stage w + 1; publish phase w + 1; wait until all are at phase w or later; consume round w.
// All members do all rounds, even if they have no data left to publish or to consume.
//
// The rounds use the parts of the staging memory one after another; there are at least four parts.
// So stage(w + 1) overwrites round w − 3 or an earlier one. This is safe without another phase. We
// stage round w + 1 after our round w − 1. In that round, we waited until all others were at phase
// w − 1 or later. The others publish phase w − 1 after their round w − 3, so they have consumed
// everything that we published in round w − 3. The slot is used again in the step after the next
// one, which no member enters before all have completed this step.
//
// If a member has exposed its input, every member publishes one more phase when it has finished
// reading that input. All members wait for this phase. The exposer waits because its caller may
// change the input as soon as the step is done. The others wait because a member that is done may
// leave the job, which ends the group. If a member sees the end of the group before it has
// published this phase, it never publishes the phase.
#pragma once

#include <cstdint>
#include <optional>

#include "base/check.h"
#include "collective/entry_barrier.h"
#include "collective/staging.h"

namespace farandole {

// One object per step. Only one thread at a time may use it: the holder of the progress lock.
// `EntryBarrierType` is an EntryBarrier; in the model explorer, it is a BasicEntryBarrier.
template <class EntryBarrierType>
class BasicRounds {
 public:
  explicit BasicRounds(const EntryBarrierType& entry_barrier) : entry_barrier_(entry_barrier) {}

  const EntryBarrierType& entry_barrier() const { return entry_barrier_; }

  // Does a bounded amount of work; see Progress. The algorithm has these functions:
  //   void stage(round): publishes our part of a round; for round 0 it is called before we enter;
  //   void enter(EntryBarrierType&): enters and publishes what the others must know;
  //   std::optional<std::int64_t> on_all_arrived(): called when all have entered. Returns the
  //     number of rounds, which is the same on all members. Empty if an entry is invalid;
  //   bool consume(round): copies or reduces what the others publish for us; false while the round
  //     is unfinished.
  template <class Algorithm>
  Progress advance(Algorithm& algorithm);

 private:
  enum class State : std::uint8_t {
    kEnter,
    kAwaitArrivals,
    kStage,
    kConsume,
    kReleaseInputs,
    kAwaitRelease,
    kOver
  };

  std::uint32_t last_phase() const { return static_cast<std::uint32_t>(rounds_); }
  template <class Algorithm>
  Progress check_arrivals(Algorithm& algorithm);
  template <class Algorithm>
  Progress consume(Algorithm& algorithm);
  Progress end_rounds();
  Progress release_inputs();
  Progress await_release();

  EntryBarrierType entry_barrier_;
  std::int64_t rounds_ = 0;
  std::int64_t round_ = 0;
  State state_ = State::kEnter;
};

// If all other members have entered the step before, one call runs a small step from its entry to
// its end.
template <class EntryBarrierType>
template <class Algorithm>
Progress BasicRounds<EntryBarrierType>::advance(Algorithm& algorithm) {
  switch (state_) {
    case State::kEnter:
      algorithm.stage(0);
      algorithm.enter(entry_barrier_);
      state_ = State::kAwaitArrivals;
      [[fallthrough]];
    case State::kAwaitArrivals:
      return check_arrivals(algorithm);
    case State::kStage:
      algorithm.stage(round_ + 1);
      entry_barrier_.board().publish_phase(static_cast<std::uint32_t>(round_ + 1));
      state_ = State::kConsume;
      return Progress::kAdvanced;
    case State::kConsume:
      return consume(algorithm);
    case State::kReleaseInputs:
      return release_inputs();
    case State::kAwaitRelease:
      return await_release();
    case State::kOver:
      break;
  }
  CHECK(false, "a step that is over is not advanced");
  return Progress::kDone;
}

template <class EntryBarrierType>
template <class Algorithm>
Progress BasicRounds<EntryBarrierType>::check_arrivals(Algorithm& algorithm) {
  if (const Progress arrived = entry_barrier_.check_arrivals(); arrived != Progress::kDone)
    return arrived;
  const std::optional<std::int64_t> rounds = algorithm.on_all_arrived();
  if (!rounds) return Progress::kMismatch;
  rounds_ = *rounds;
  if (rounds_ == 0) return end_rounds();
  state_ = rounds_ > 1 ? State::kStage : State::kConsume;
  return rounds_ > 1 ? Progress::kAdvanced : consume(algorithm);
}

template <class EntryBarrierType>
template <class Algorithm>
Progress BasicRounds<EntryBarrierType>::consume(Algorithm& algorithm) {
  // Round 0 was staged before the entry.
  if (round_ > 0 && !entry_barrier_.board().all_reached(static_cast<std::uint32_t>(round_)))
    return Progress::kPending;
  if (!algorithm.consume(round_)) return Progress::kAdvanced;
  ++round_;
  if (round_ == rounds_) return end_rounds();
  state_ = round_ + 1 < rounds_ ? State::kStage : State::kConsume;
  return Progress::kAdvanced;
}

template <class EntryBarrierType>
Progress BasicRounds<EntryBarrierType>::end_rounds() {
  if (rounds_ > 0 && entry_barrier_.any_member_exposes_input()) {
    state_ = State::kReleaseInputs;
    return release_inputs();
  }
  state_ = State::kOver;
  return Progress::kDone;
}

template <class EntryBarrierType>
Progress BasicRounds<EntryBarrierType>::release_inputs() {
  if (entry_barrier_.exposed_input_may_have_changed()) return Progress::kPending;
  entry_barrier_.board().publish_phase(last_phase());
  state_ = State::kAwaitRelease;
  return await_release() == Progress::kDone ? Progress::kDone : Progress::kAdvanced;
}

template <class EntryBarrierType>
Progress BasicRounds<EntryBarrierType>::await_release() {
  if (!entry_barrier_.board().all_reached(last_phase())) return Progress::kPending;
  state_ = State::kOver;
  return Progress::kDone;
}

using Rounds = BasicRounds<EntryBarrier>;

}  // namespace farandole
