// Rounds: what staged algorithms with one wait per round share. In a round every member shows a
// part of what it brings in its staging memory, and takes what the others show for it.
//
// Phase w of a member = "my part of round w is staged" (0 is the entry itself). A member goes, for
// w = 0, 1, …:  stage w + 1; publish w + 1; wait all ≥ w; take round w. All members do all rounds,
// also those that have nothing left to show or to take.
// Round w lives in part w mod 4 of the staging memory. stage(w + 1) overwrites round w − 3. We do
// it after our round w − 1, in which all were at ≥ w − 1, and they publish w − 1 after their round
// w − 3: everybody has taken what we showed in round w − 3. So no further phase is needed. The next
// step with this slot is entered only when all are done with this one.
#pragma once

#include <cstdint>
#include <optional>

#include "base/check.h"
#include "collective/entrance.h"

namespace farandole {

inline constexpr std::int64_t kWindow = static_cast<std::int64_t>(kWindowBytes);
inline constexpr std::int64_t kRoundParts = 4;
static_assert(kRoundParts * kWindow <= static_cast<std::int64_t>(kStagingBytesPerSlot),
              "each part holds a window");

// What is shown for one member begins here: no cache line is for two of them.
inline constexpr std::int64_t kPieceAlignment = 64;

// One per step; one thread at a time (the baton's holder).
class Rounds {
 public:
  // `group` is borrowed and outlives this.
  Rounds(const Group& group, const StepIdentity& identity) : entrance_(group, identity) {}

  const Entrance& entrance() const { return entrance_; }

  // A bounded amount of work; see Progress. The algorithm has
  //   void stage(round): shows our part of a round; round 0 before we enter;
  //   std::int64_t extent(): what we say on entering;
  //   std::optional<std::int64_t> meet(): all have entered. How many rounds there are, the same on
  //     all members; nothing when an entry makes no sense;
  //   bool take(round): what the others show for us; false while some of this round is left.
  template <class Algorithm>
  Progress advance(Algorithm& algorithm);

 private:
  enum class State : std::uint8_t { kEnter, kMeet, kStage, kTake, kOver };

  Progress go_on(State state) {
    state_ = state;
    return Progress::kMoved;
  }

  Progress finish() {
    entrance_.board().finish();
    state_ = State::kOver;
    return Progress::kDone;
  }

  Entrance entrance_;
  std::int64_t rounds_ = 0;
  std::int64_t round_ = 0;
  State state_ = State::kEnter;
};

template <class Algorithm>
Progress Rounds::advance(Algorithm& algorithm) {
  switch (state_) {
    case State::kEnter:
      if (!entrance_.may_enter()) return Progress::kPending;
      algorithm.stage(0);
      entrance_.enter(algorithm.extent());
      return go_on(State::kMeet);
    case State::kMeet: {
      if (const Progress met = entrance_.meet(); met != Progress::kDone) return met;
      const std::optional<std::int64_t> rounds = algorithm.meet();
      if (!rounds) return Progress::kMismatch;
      rounds_ = *rounds;
      return rounds_ == 0 ? finish() : go_on(State::kStage);
    }
    case State::kStage:
      if (round_ + 1 < rounds_) {
        algorithm.stage(round_ + 1);
        entrance_.board().publish_phase(static_cast<std::uint32_t>(round_ + 1));
      }
      return go_on(State::kTake);
    case State::kTake:
      if (!entrance_.board().all_reached(static_cast<std::uint32_t>(round_)))
        return Progress::kPending;
      if (!algorithm.take(round_)) return Progress::kMoved;
      ++round_;
      return round_ == rounds_ ? finish() : go_on(State::kStage);
    case State::kOver:
      break;
  }
  CHECK(false, "a step that is over is not advanced");
  return Progress::kDone;
}

}  // namespace farandole
