// Failpoint: for tests, this process dies, stops or pauses at a named place on its way into a group
// or out of it. A signal from outside would hardly ever come between two steps of a formation. The
// knob FARANDOLE_FAILPOINT says where, how and when: PLACE:ACTION:NUMBER.
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
  // In the order in which a process passes them, from one group to the next.
  enum class Place : std::uint8_t {
    kEngineStopping,      // the engine of the old group still runs
    kEngineStopped,       // its threads have stopped, its memory is still mapped
    kRankWanted,          // before the launcher is asked for a rank in an elastic job
    kRankAsked,           // the launcher has been asked
    kRankGiven,           // the launcher has answered
    kFormationPublished,  // the other ranks can read this rank's member record
    kFormationShared,     // and can map this rank's memory
    kFormationAttached,   // this rank has mapped the memory of the others
    kFormationCounted,    // and the others know; the last rank has not yet told them to go on
    kFormationCompleted,  // all ranks go on; the keys of the formation still exist
    kFormationDeparted,   // this rank has removed its keys
  };
  enum class Action : std::uint8_t {
    kKill,   // SIGKILL
    kStop,   // SIGSTOP
    kPause,  // 0.1 s
  };

  // Returns null if the text is empty. Errors: kFixCall with the allowed values.
  static Result<std::shared_ptr<Failpoint>> parse(const std::string& text);

  // Counts that the process has reached the place. At the chosen count, writes a line to standard
  // error and then acts.
  void pass(Place place);

  Failpoint(Place place, Action action, std::int64_t number)
      : place_(place), action_(action), passings_left_(number) {}

 private:
  void act() const;

  const Place place_;
  const Action action_;
  std::atomic<std::int64_t> passings_left_;  // the failpoint acts when it is 0
};

// `failpoint` is null except in tests.
inline void pass(const std::shared_ptr<Failpoint>& failpoint, Failpoint::Place place) {
  if (failpoint) failpoint->pass(place);
}

}  // namespace farandole
