// Failpoint: makes a process die, stop or pause at a named place while it joins or leaves a group.
// Tests use it because a signal from outside would rarely hit the moment between two steps of a
// formation. The knob FARANDOLE_FAILPOINT is PLACE:ACTION:NUMBER; the process acts when it passes
// the place for the NUMBERth time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "farandole/status.h"

namespace farandole {

// Any thread may call its functions.
class Failpoint {
 public:
  // A process passes the places in this order when it goes from one group to the next.
  enum class Place : std::uint8_t {
    kEngineStopping,      // the engine of the old group still runs
    kEngineStopped,       // the threads of that engine have stopped; its memory is still mapped
    kRankWanted,          // before the launcher is asked for a rank in an elastic job
    kRankAsked,           // the launcher has been asked
    kRankGiven,           // the launcher has answered
    kFormationPublished,  // the other ranks can read this rank's member record
    kFormationShared,     // the other ranks can map this rank's memory
    kFormationAttached,   // this rank has mapped the memory of the others
    kFormationCounted,    // this rank has reported that it has mapped all memory
    kFormationCompleted,  // the formation has succeeded; its keys still exist
    kFormationDeparted,   // this rank has removed its keys
  };
  enum class Action : std::uint8_t {
    kKill,   // SIGKILL
    kStop,   // SIGSTOP
    kPause,  // 0.1 s
  };

  // Returns null if the text is empty. Errors: kFixCall with the allowed values.
  static Result<std::shared_ptr<Failpoint>> parse(const std::string& text);

  // Call it when the process reaches a place. At the chosen place, the NUMBERth call writes a line
  // to standard error and acts.
  void pass(Place place);

  Failpoint(Place place, Action action, std::int64_t number)
      : place_(place), action_(action), passes_left_(number) {}

 private:
  void act() const;

  const Place place_;
  const Action action_;
  std::atomic<std::int64_t> passes_left_;  // the failpoint acts when this number is 0
};

// `failpoint` is null except in tests.
inline void pass(const std::shared_ptr<Failpoint>& failpoint, Failpoint::Place place) {
  if (failpoint) failpoint->pass(place);
}

}  // namespace farandole
