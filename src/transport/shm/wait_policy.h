// WaitPolicy and wait_awake(): the behaviour of a waiting thread before it sleeps. If every rank
// has a core, spinning is best, because a sleep costs 5 to 55 µs. With fewer cores, a spinning rank
// may occupy the core that the awaited rank needs, so yielding is better. Ranks of another job, or
// ranks in another container on this machine, may also need the core. So a rank that spins for a
// longer time also yields sometimes. A yield costs little if no other thread needs the core.
//
// If other programs use the core, a yield may take milliseconds. So after a long yield, the next
// waits do not yield. With fewer cores than ranks, the number of these waits is small after the
// first long yield, and doubles with each further long yield. If each rank has its own core, this
// number is always the largest possible one, because a yield is then rarely useful, and data
// loaders often use the core.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace farandole {

// WaitPolicy only decides; it never sleeps. While spinning, it rarely reads the clock, because this
// costs as much as a check of the flags. Only one thread at a time may use it: the holder of the
// progress lock.
class WaitPolicy {
 public:
  enum class Action : std::uint8_t {
    // Check the flags again without a pause, because a pause takes longer than the arrival of a
    // flag.
    kCheck,
    kPoll,   // pause the processor briefly, then check the flags
    kYield,  // yield the core, then check the flags
    kSleep,  // prepare_sleep(), check the flags, sleep()
  };

  // While spinning:
  static constexpr auto kSpinTime = std::chrono::microseconds(100);  // the minimum before a sleep
  static constexpr auto kSpinTimeBeforeYields = std::chrono::microseconds(5);
  static constexpr int kChecksBeforePause = 64;    // checks before the first pause
  static constexpr int kPollsBeforeClockRead = 4;  // polls before the clock is first read
  static constexpr int kPollsPerClockRead = 8;     // polls between two later reads of the clock

  static constexpr int kPollsBeforeYield = 4;  // polls before the first yield, if ranks share cores
  static constexpr int kYieldsBeforeSleep = 16;  // yields before the first sleep
  // A yield that takes at least this time is a long yield. A few other ranks on this core need less
  // time; the time slice of another program takes longer (3 ms or more).
  static constexpr auto kLongYieldTime = std::chrono::milliseconds(1);
  static constexpr int kSkippedWaitsMin = 16;
  static constexpr int kSkippedWaitsMax = 4096;

  WaitPolicy(int local_ranks, int cores) : has_own_core_(local_ranks <= cores) {}

  void begin_wait(const Clock& clock);
  // Returns what to do after a check of the flags that found no change. The first call after kSleep
  // also calls begin_wait().
  Action next_action(const Clock& clock);

 private:
  Action next_while_spinning(const Clock& clock);
  Action yield(TimePoint now);
  Action sleep();
  void learn_from_yield(const Clock& clock);

  bool has_own_core_;
  bool is_asleep_ = false;
  bool has_yielded_ = false;       // the last action was a yield, which began at yield_began_
  bool all_yields_short_ = false;  // this wait has yielded, and all yields were short
  TimePoint spin_began_{};         // when this wait first read the clock
  TimePoint yield_began_{};
  int polls_ = 0;
  int yields_ = 0;
  int skipped_waits_ = 0;                      // how many more waits do not yield
  int skipped_waits_next_ = kSkippedWaitsMin;  // skipped_waits_ after the next long yield
};

// Call it after a check of the flags that found no change. If the policy says to sleep, returns
// false and does nothing. Otherwise, does what the policy says and returns true.
bool wait_awake(WaitPolicy& policy, const Clock& clock);

}  // namespace farandole
