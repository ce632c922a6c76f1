// TwoShots: the flags of a reduction in two shots, window by window. First each member reduces its
// slice of the window over all members, then it fetches the other slices from where they were
// reduced.
//
// The phases of a member: 2w = "my copy of window w is staged" (0 is the entry itself), 2w + 1 =
// "my slice of window w is reduced". A member goes, for w = 0, 1, …:
//   wait all ≥ 2w; reduce w; publish 2w + 1; stage w + 1; publish 2w + 2; wait all ≥ 2w + 1;
//   fetch w.
// The windows live in the parts of the staging memory in turn, and there are three of them at
// least. There a member has its copy of the slices that the others reduce and, between them, its
// own slice, reduced. stage(w + 1) overwrites window w − 2 or an earlier one. We do it after
// reduce(w), so all were at ≥ 2w, and they stage w only after reduce(w − 1), which follows fetch(w
// − 2): everybody has what we showed of it. The slot is used again in the step after the next,
// which nobody enters before all have completed this one. In place: stage(w + 1) reads the user's
// memory of window w + 1, which is written first by reduce(w + 1); what reduce(w) and fetch(w)
// write lies in window w, staged before. Memory that is exposed is read, and written, by the others
// in reduce only: its owner completes after all have said that they reduced the last window. A
// member that finds the group at its end before does not say so.
#pragma once

#include <cstdint>
#include <optional>

#include "base/check.h"
#include "collective/entry_barrier.h"

namespace farandole {

// One per step; one thread at a time (the holder of the progress lock). `Way` is an EntryBarrier,
// or, for the model explorer, a BasicEntryBarrier.
template <class Way>
class BasicTwoShots {
 public:
  explicit BasicTwoShots(const Way& entry_barrier) : entry_barrier_(entry_barrier) {}

  const Way& entry_barrier() const { return entry_barrier_; }

  // A bounded amount of work; see Progress. The algorithm has
  //   void stage(window): shows our copy of a window; window 0 before we enter;
  //   void enter(Way&): says on entering what the others must know;
  //   std::optional<std::int64_t> all_arrived(): all have entered. How many windows there are, the
  //     same on all members; nothing when an entry makes no sense;
  //   bool reduce(window): our slice of it; false while some of it is left;
  //   void fetch(window): the other slices.
  template <class Algorithm>
  Progress advance(Algorithm& algorithm);

 private:
  enum class State : std::uint8_t { kEnter, kArrive, kReduce, kShow, kFetch, kOver };

  template <class Algorithm>
  Progress arrive(Algorithm& algorithm);
  template <class Algorithm>
  Progress reduce(Algorithm& algorithm);
  template <class Algorithm>
  Progress show(Algorithm& algorithm);
  template <class Algorithm>
  Progress fetch(Algorithm& algorithm);

  Way entry_barrier_;
  std::int64_t windows_ = 0;
  std::int64_t window_ = 0;
  State state_ = State::kEnter;
};

template <class Way>
template <class Algorithm>
Progress BasicTwoShots<Way>::advance(Algorithm& algorithm) {
  switch (state_) {
    case State::kEnter:
      algorithm.stage(0);
      algorithm.enter(entry_barrier_);
      state_ = State::kArrive;
      [[fallthrough]];
    case State::kArrive:
      return arrive(algorithm);
    case State::kReduce:
      return reduce(algorithm);
    case State::kShow:
      return show(algorithm);
    case State::kFetch:
      return fetch(algorithm);
    case State::kOver:
      break;
  }
  CHECK(false, "a step that is over is not advanced");
  return Progress::kDone;
}

template <class Way>
template <class Algorithm>
Progress BasicTwoShots<Way>::arrive(Algorithm& algorithm) {
  if (const Progress arrived = entry_barrier_.check_arrivals(); arrived != Progress::kDone)
    return arrived;
  const std::optional<std::int64_t> windows = algorithm.all_arrived();
  if (!windows) return Progress::kMismatch;
  windows_ = *windows;
  // What is exposed is read and written in reduce() only.
  if (windows_ > 0)
    entry_barrier_.board().set_last_phase(static_cast<std::uint32_t>(2 * (windows_ - 1) + 1));
  state_ = windows_ == 0 ? State::kOver : State::kReduce;
  return windows_ == 0 ? Progress::kDone : reduce(algorithm);
}

template <class Way>
template <class Algorithm>
Progress BasicTwoShots<Way>::reduce(Algorithm& algorithm) {
  if (!entry_barrier_.board().all_reached(static_cast<std::uint32_t>(2 * window_)))
    return Progress::kPending;
  if (!algorithm.reduce(window_)) return Progress::kMoved;
  state_ = State::kShow;
  return show(algorithm);
}

template <class Way>
template <class Algorithm>
Progress BasicTwoShots<Way>::show(Algorithm& algorithm) {
  const auto phase = static_cast<std::uint32_t>(2 * window_);
  const bool is_last = window_ + 1 == windows_;
  if (is_last && entry_barrier_.is_exposer_gone()) return Progress::kPending;
  entry_barrier_.board().publish_phase(phase + 1);
  if (!is_last) {
    algorithm.stage(window_ + 1);
    entry_barrier_.board().publish_phase(phase + 2);
  }
  state_ = State::kFetch;
  return Progress::kMoved;
}

template <class Way>
template <class Algorithm>
Progress BasicTwoShots<Way>::fetch(Algorithm& algorithm) {
  if (!entry_barrier_.board().all_reached(static_cast<std::uint32_t>(2 * window_ + 1)))
    return Progress::kPending;
  algorithm.fetch(window_);
  ++window_;
  state_ = window_ == windows_ ? State::kOver : State::kReduce;
  return window_ == windows_ ? Progress::kDone : Progress::kMoved;
}

using TwoShots = BasicTwoShots<EntryBarrier>;

}  // namespace farandole
