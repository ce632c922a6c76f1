// TwoShots: the flags of a two-shot allreduce, window by window. In the first shot, each member
// reduces its slice of the window over all members. In the second shot, it fetches the slices of
// the other members, each from the member that reduced it.
//
// A member publishes phase 2w when its copy of window w is staged; phase 0 is the entry itself. It
// publishes phase 2w + 1 when its slice of window w is reduced. For w = 0, 1, …, each member does
// this:
//   wait until all are at phase 2w or later; reduce w; publish phase 2w + 1;
//   stage w + 1; publish phase 2w + 2;
//   wait until all are at phase 2w + 1 or later; fetch w.
//
// The windows use the parts of the staging memory one after another; there are at least three
// parts. A member's part holds one window: the reduced slice of the member itself, and its copies
// of all other slices, which the other members reduce. stage(w + 1) overwrites window w − 2 or an
// earlier one. That is safe: we call it after reduce(w), so all others were at phase 2w or later.
// The others stage w only after reduce(w − 1), which follows fetch(w − 2), so they have read
// everything that we published of window w − 2. The slot is used again in the step after the next
// one, which no member enters before all have completed this step.
//
// In a call in place, stage(w + 1) reads the user's memory of window w + 1. reduce(w + 1) is the
// first function that writes to that memory. reduce(w) and fetch(w) write to window w, which was
// staged before.
//
// The other members read and write exposed memory only in reduce(). The owner of exposed memory
// completes the step only after all members have published that they reduced the last window. If a
// member sees the end of the group before it has published this phase, it never publishes the
// phase.
#pragma once

#include <cstdint>
#include <optional>

#include "base/check.h"
#include "collective/entry_barrier.h"

namespace farandole {

// One object per step. Only one thread at a time may use it: the holder of the progress lock.
// `EntryBarrierType` is an EntryBarrier; in the model explorer, it is a BasicEntryBarrier.
template <class EntryBarrierType>
class BasicTwoShots {
 public:
  explicit BasicTwoShots(const EntryBarrierType& entry_barrier) : entry_barrier_(entry_barrier) {}

  const EntryBarrierType& entry_barrier() const { return entry_barrier_; }

  // Does a bounded amount of work; see Progress. The algorithm has these functions:
  //   void stage(window): publishes our copy of a window; called for window 0 before we enter;
  //   void enter(EntryBarrierType&): enters and publishes what the others must know;
  //   std::optional<std::int64_t> on_all_arrived(): called when all have entered. Returns the
  //     number of windows, which is the same on all members. Empty if an entry is invalid;
  //   bool reduce(window): reduces our slice; false while a part of it is left;
  //   void fetch(window): fetches the other slices.
  template <class Algorithm>
  Progress advance(Algorithm& algorithm);

 private:
  enum class State : std::uint8_t { kEnter, kAwaitArrivals, kReduce, kPublish, kFetch, kOver };

  template <class Algorithm>
  Progress check_arrivals(Algorithm& algorithm);
  template <class Algorithm>
  Progress reduce(Algorithm& algorithm);
  template <class Algorithm>
  Progress publish(Algorithm& algorithm);
  template <class Algorithm>
  Progress fetch(Algorithm& algorithm);

  EntryBarrierType entry_barrier_;
  std::int64_t windows_ = 0;
  std::int64_t window_ = 0;
  State state_ = State::kEnter;
};

template <class EntryBarrierType>
template <class Algorithm>
Progress BasicTwoShots<EntryBarrierType>::advance(Algorithm& algorithm) {
  switch (state_) {
    case State::kEnter:
      algorithm.stage(0);
      algorithm.enter(entry_barrier_);
      state_ = State::kAwaitArrivals;
      [[fallthrough]];
    case State::kAwaitArrivals:
      return check_arrivals(algorithm);
    case State::kReduce:
      return reduce(algorithm);
    case State::kPublish:
      return publish(algorithm);
    case State::kFetch:
      return fetch(algorithm);
    case State::kOver:
      break;
  }
  CHECK(false, "a step that is over is not advanced");
  return Progress::kDone;
}

template <class EntryBarrierType>
template <class Algorithm>
Progress BasicTwoShots<EntryBarrierType>::check_arrivals(Algorithm& algorithm) {
  if (const Progress arrived = entry_barrier_.check_arrivals(); arrived != Progress::kDone)
    return arrived;
  const std::optional<std::int64_t> windows = algorithm.on_all_arrived();
  if (!windows) return Progress::kMismatch;
  windows_ = *windows;
  // The other members read and write exposed memory only in reduce(). So they no longer use the
  // memory of a member after they have published that the last window is reduced.
  if (windows_ > 0)
    entry_barrier_.board().set_last_phase(static_cast<std::uint32_t>(2 * (windows_ - 1) + 1));
  state_ = windows_ == 0 ? State::kOver : State::kReduce;
  return windows_ == 0 ? Progress::kDone : reduce(algorithm);
}

template <class EntryBarrierType>
template <class Algorithm>
Progress BasicTwoShots<EntryBarrierType>::reduce(Algorithm& algorithm) {
  if (!entry_barrier_.board().all_reached(static_cast<std::uint32_t>(2 * window_)))
    return Progress::kPending;
  if (!algorithm.reduce(window_)) return Progress::kAdvanced;
  state_ = State::kPublish;
  return publish(algorithm);
}

template <class EntryBarrierType>
template <class Algorithm>
Progress BasicTwoShots<EntryBarrierType>::publish(Algorithm& algorithm) {
  const auto phase = static_cast<std::uint32_t>(2 * window_);
  const bool is_last = window_ + 1 == windows_;
  if (is_last && entry_barrier_.exposed_input_may_have_changed()) return Progress::kPending;
  entry_barrier_.board().publish_phase(phase + 1);
  if (!is_last) {
    algorithm.stage(window_ + 1);
    entry_barrier_.board().publish_phase(phase + 2);
  }
  state_ = State::kFetch;
  return Progress::kAdvanced;
}

template <class EntryBarrierType>
template <class Algorithm>
Progress BasicTwoShots<EntryBarrierType>::fetch(Algorithm& algorithm) {
  if (!entry_barrier_.board().all_reached(static_cast<std::uint32_t>(2 * window_ + 1)))
    return Progress::kPending;
  algorithm.fetch(window_);
  ++window_;
  state_ = window_ == windows_ ? State::kOver : State::kReduce;
  return window_ == windows_ ? Progress::kDone : Progress::kAdvanced;
}

using TwoShots = BasicTwoShots<EntryBarrier>;

}  // namespace farandole
