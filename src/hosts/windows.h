// HostWindows: the flags of a step that moves data between hosts, window by window. Every host has
// a stream of bytes for every host, also for itself. Window w is the w-th chunk of all streams.
// Lane k carries slice k of each chunk. For window w, a member does this:
//   A(w): stages its part of the window, and publishes phase A(w);
//   K(w): waits until all members have done A(w). Then it copies the data of its own host from
//         their staging memory, and begins to send and receive through its lane;
//   B(w): waits until it has sent all its data of the window, and until all results of its lane are
//         in its own staging memory. Then it publishes phase B(w);
//   C(w): waits until all members have done B(w). Then it fetches its own results from their
//         staging memory.
// A member that is alone on its host may skip its staging memory: it sends from its input, and its
// results are complete in its output at B(w). A step writes each byte of the output only once. Only
// the buffer that a GatheredReduction uses instead of the output is written again: window w + 2
// overwrites data that the member has read in C(w), and C(w) comes before K(w + 2).
//
// Each member does this in the order
//   A0 K0 A1 K1 B0 C0 A2 K2 B1 C1 A3 K3 B2 C2 …
// so two windows are on the wire at any time. Members without a lane do the same, except that they
// send and receive nothing. Members publish only A and B, as increasing phases.
//
// Even and odd windows each have one half of the staging memory. Nothing is overwritten too early:
// - In A(w + 2), a member overwrites staged data that others read in K(w) and sent until B(w). The
//   member has done C(w) before, so all members have published B(w). Each of them published B(w)
//   after its K(w) and its sends.
// - In window w + 2, a member overwrites results that others fetched in C(w). In K(w + 2), the
//   member has waited until all members have done A(w + 2), which comes after their C(w).
// - The step after the next one uses the slot again. A member enters it only after all members have
//   completed this step.
//
// The waits form no cycle between hosts. A member waits only for data that members on other hosts
// send in K(w), or send after they have received the data of K(w). To do K(w), a member must wait
// only for the members of its own host: they must have done C(w − 2).
#pragma once

#include <cstdint>

#include "base/check.h"
#include "hosts/notes.h"

namespace farandole {

// One object per step. Only one thread at a time may use it: the holder of the progress lock. This
// is a template so that the model explorer can use its own board; otherwise, `Board` is FlagBoard.
template <class Board>
class BasicHostWindows {
 public:
  void start(Board& board, std::int64_t window_count) {
    board_ = &board;
    window_count_ = window_count;
  }

  // Does a bounded amount of work; see Progress. The algorithm has these functions:
  //   void stage(window): A;
  //   void begin(window): K;
  //   bool drive(): sends and receives through our lane, for example forwards data that has
  //     arrived. Returns whether it did anything. Called first, so that the wire is not idle;
  //   bool is_complete(window): whether we have sent all data and have all results;
  //   void fetch(window): C.
  template <class Algorithm>
  Progress advance(Algorithm& algorithm) {
    const bool has_driven = algorithm.drive();
    const Progress progress = advance_window(algorithm);
    return progress == Progress::kPending && has_driven ? Progress::kAdvanced : progress;
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
  std::int64_t window_count_ = 0;
  std::int64_t windows_begun_ = 0;    // number of windows that have done K
  std::int64_t windows_fetched_ = 0;  // number of windows that have done C
  State state_ = State::kStage;
};

template <class Board>
template <class Algorithm>
Progress BasicHostWindows<Board>::advance_window(Algorithm& algorithm) {
  switch (state_) {
    case State::kStage:
      algorithm.stage(windows_begun_);
      board_->publish_phase(staged_phase(windows_begun_));
      state_ = State::kBegin;
      return Progress::kAdvanced;
    case State::kBegin:
      if (!board_->all_reached(staged_phase(windows_begun_))) return Progress::kPending;
      algorithm.begin(windows_begun_);
      ++windows_begun_;
      state_ = windows_begun_ == 1 && window_count_ > 1 ? State::kStage : State::kComplete;
      return Progress::kAdvanced;
    case State::kComplete:
      if (!algorithm.is_complete(windows_fetched_)) return Progress::kPending;
      board_->publish_phase(complete_phase(windows_fetched_));
      state_ = State::kFetch;
      return Progress::kAdvanced;
    case State::kFetch:
      if (!board_->all_reached(complete_phase(windows_fetched_))) return Progress::kPending;
      algorithm.fetch(windows_fetched_);
      ++windows_fetched_;
      state_ = windows_fetched_ == window_count_ ? State::kOver
               : windows_begun_ < window_count_  ? State::kStage
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
// HostNotes needs, and the function std::optional<std::int64_t> on_all_arrived(), which is called
// when valid notes of all hosts have arrived. on_all_arrived() returns the number of windows, which
// is the same on all members of all hosts, or an empty value if the content of the notes is
// invalid. If the number is 0, the outputs are complete. `window_algorithm` has the functions that
// HostWindows needs.
template <class Operation, class WindowAlgorithm>
Progress advance_between_hosts(HostNotes& notes, HostWindows& windows, Operation& operation,
                               WindowAlgorithm& window_algorithm) {
  if (notes.is_over()) return windows.advance(window_algorithm);
  if (const Progress notes_progress = notes.advance(operation); notes_progress != Progress::kDone)
    return notes_progress;
  if (!notes.are_valid()) return Progress::kMismatch;
  const std::optional<std::int64_t> window_count = operation.on_all_arrived();
  if (!window_count) return Progress::kMismatch;
  windows.start(notes.entry_barrier().board(), *window_count);
  return *window_count == 0 ? Progress::kDone : Progress::kAdvanced;
}

}  // namespace farandole
