// HostWindows: the flags of a step that moves data between hosts, window by window. Every host has
// a stream of bytes for every host, also for itself. Window w is the w-th chunk of all streams.
// Lane k carries slice k of each chunk. For window w, a member does this:
//   A(w): stages its part of the window, and publishes A(w);
//   K(w): waits until all have done A(w). Then it takes the data that needs no other host from
//         the staging memory of the others, and begins to send and receive through its lane;
//   B(w): waits until it has sent all its data of the window, and has all results of its lane in
//         its own staging memory. Then it publishes B(w);
//   C(w): waits until all have done B(w), and fetches its own results from their staging memory.
// A member that is alone on its host may skip its staging memory: it sends from its input, and its
// results are complete in its output at B(w). A step writes such memory once. Only the buffer of a
// GatheredReduction is written again: window w + 2 overwrites what the member has read in C(w),
// which comes before K(w + 2).
//
// Each member does this in the order
//   A0 K0 A1 K1 B0 C0 A2 K2 B1 C1 A3 K3 B2 C2 …
// so two windows are on the wire at any time. Members without a lane do the same, except that they
// send and receive nothing. Members publish only A and B, as growing phases.
//
// Even and odd windows each have one half of the staging memory. Nothing is overwritten too early:
// - What a member stages in A(w + 2) overwrites what others read in K(w) and sent until B(w). The
//   member has done C(w) before, so all have published B(w), and each did so after its K(w) and its
//   sends.
// - What a member receives in window w + 2 overwrites results that others fetched in C(w). The
//   member has waited in K(w + 2) until all have done A(w + 2), which they do after C(w).
// - The slot is used again in the step after the next one, which no member enters before all have
//   completed this step.
//
// The waits form no cycle between hosts. A member waits only for data that members on other hosts
// send in K(w), or that they send after they have received the data of K(w). Before a member can do
// K(w), only the members of its own host must have done C(w − 2).
#pragma once

#include <cstdint>

#include "base/check.h"
#include "hosts/notes.h"

namespace farandole {

// One object per step. Only one thread at a time may use it: the holder of the progress lock.
// `Board` is a FlagBoard; it is a template so that the model explorer can run it on its own board.
template <class Board>
class BasicHostWindows {
 public:
  void start(Board& board, std::int64_t windows) {
    board_ = &board;
    windows_ = windows;
  }

  // Does a bounded amount of work; see Progress. The algorithm has these functions:
  //   void stage(window): A;
  //   void begin(window): K;
  //   bool drive(): sends and receives through our lane, for example forwards data that has
  //     arrived. Returns whether it did anything. Called before all else, so that the wire does not
  //     idle; bool is_complete(window): whether we have sent all data and have all results; void
  //     fetch(window): C.
  template <class Algorithm>
  Progress advance(Algorithm& algorithm) {
    const bool drove = algorithm.drive();
    const Progress progress = advance_window(algorithm);
    return progress == Progress::kPending && drove ? Progress::kAdvanced : progress;
  }

 private:
  enum class State : std::uint8_t { kStage, kBegin, kComplete, kFetch, kOver };

  // The phases, in the order in which members publish them. HostNotes uses phase 1.
  static std::uint32_t staged_phase(std::int64_t window) {
    return window == 0 ? 2 : static_cast<std::uint32_t>(2 * window + 1);
  }
  static std::uint32_t complete_phase(std::int64_t window) {
    return static_cast<std::uint32_t>(2 * window + 4);
  }

  template <class Algorithm>
  Progress advance_window(Algorithm& algorithm);

  Board* board_ = nullptr;
  std::int64_t windows_ = 0;
  std::int64_t begun_ = 0;    // windows of which K is done
  std::int64_t fetched_ = 0;  // windows of which C is done
  State state_ = State::kStage;
};

template <class Board>
template <class Algorithm>
Progress BasicHostWindows<Board>::advance_window(Algorithm& algorithm) {
  switch (state_) {
    case State::kStage:
      algorithm.stage(begun_);
      board_->publish_phase(staged_phase(begun_));
      state_ = State::kBegin;
      return Progress::kAdvanced;
    case State::kBegin:
      if (!board_->all_reached(staged_phase(begun_))) return Progress::kPending;
      algorithm.begin(begun_);
      ++begun_;
      state_ = begun_ == 1 && windows_ > 1 ? State::kStage : State::kComplete;
      return Progress::kAdvanced;
    case State::kComplete:
      if (!algorithm.is_complete(fetched_)) return Progress::kPending;
      board_->publish_phase(complete_phase(fetched_));
      state_ = State::kFetch;
      return Progress::kAdvanced;
    case State::kFetch:
      if (!board_->all_reached(complete_phase(fetched_))) return Progress::kPending;
      algorithm.fetch(fetched_);
      ++fetched_;
      state_ = fetched_ == windows_ ? State::kOver
               : begun_ < windows_  ? State::kStage
                                    : State::kComplete;
      return state_ == State::kOver ? Progress::kDone : Progress::kAdvanced;
    case State::kOver:
      break;
  }
  CHECK(false, "a step that is over is not advanced");
  return Progress::kDone;
}

using HostWindows = BasicHostWindows<FlagBoard>;

// Runs a step between hosts: its notes, then its windows. `operation` has the functions that
// HostNotes needs, and std::optional<std::int64_t> on_all_arrived(): called when the notes are
// there and valid. on_all_arrived() returns the number of windows, which is the same on all members
// of all hosts. If that number is 0, the outputs are complete. The result is empty if the notes are
// invalid. `mover` has the functions that HostWindows needs.
template <class Operation, class Mover>
Progress advance_between_hosts(HostNotes& notes, HostWindows& windows, Operation& operation,
                               Mover& mover) {
  if (notes.is_over()) return windows.advance(mover);
  if (const Progress noted = notes.advance(operation); noted != Progress::kDone) return noted;
  if (!notes.are_valid()) return Progress::kMismatch;
  const std::optional<std::int64_t> count = operation.on_all_arrived();
  if (!count) return Progress::kMismatch;
  windows.start(notes.entry_barrier().board(), *count);
  return *count == 0 ? Progress::kDone : Progress::kAdvanced;
}

}  // namespace farandole
