// WaitPolicy and wait_awake(): how a waiter spends its time before it sleeps. With a core for every
// rank, spinning is best: a sleep costs 5 to 55 µs. With fewer, a spinning rank keeps the one it
// waits for off the core, and yielding helps, but only while the core is ours: beside other work a
// yield may take milliseconds. So a long yield turns yielding off for a while, which doubles when
// it happens again.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace farandole {

// Decisions only: it never sleeps, and reads the clock that it is given as rarely as it can, for
// that costs as much as a look at the flags. For the holder of the progress lock; one thread at a
// time.
class WaitPolicy {
 public:
  enum class Action : std::uint8_t {
    kLook,   // at once: a pause is longer than what a flag of another core takes to come
    kPoll,   // pause for an instant, then look
    kYield,  // give the core away, then look
    kSleep,  // prepare_sleep(), look, sleep()
  };

  static constexpr auto kSpin = std::chrono::microseconds(100);
  static constexpr int kLooks = 64;            // before the first pause, while spinning
  static constexpr int kPollsPerReading = 16;  // of the clock, likewise
  static constexpr int kPolls = 4;             // before the first yield
  static constexpr int kYields = 16;
  // Between the work of a few other ranks on this core and the slice of a stranger (3 ms and more).
  static constexpr auto kLongYield = std::chrono::milliseconds(1);
  static constexpr int kSkippedWaitsMin = 16;
  static constexpr int kSkippedWaitsMax = 4096;

  WaitPolicy(int local_ranks, int cores) : own_core_(local_ranks <= cores) {}

  void begin_wait(const Clock& clock);
  // What to do now that another look found nothing. After a sleep the wait begins anew.
  Action next(const Clock& clock);

 private:
  bool spins_on(const Clock& clock);
  void learn_from_yield(const Clock& clock);

  bool own_core_;
  bool asleep_ = false;
  bool yielded_ = false;      // the last action was a yield, at yield_began_
  bool good_yields_ = false;  // this wait has yielded, and never for long
  TimePoint spin_end_{};      // set at the first reading
  TimePoint yield_began_{};
  int polls_ = 0;
  int yields_ = 0;
  int skipped_waits_ = 0;                      // still to come without yielding
  int skipped_waits_next_ = kSkippedWaitsMin;  // after the next long yield
};

// Does what the policy says now that another look found nothing, but for the sleep: false when that
// is due.
bool wait_awake(WaitPolicy& policy, const Clock& clock);

}  // namespace farandole
