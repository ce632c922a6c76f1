// WaitPolicy and wait_awake(): what a waiting thread does before it sleeps. If every rank has a
// core, spinning is best, because a sleep costs 5 to 55 µs. With fewer cores, a spinning rank may
// occupy the core that the awaited rank needs, so yielding is better. Ranks of another job, or of
// another "host" that is a container on this machine, may also need the core. So a rank that spins
// for longer yields now and then, which costs little if nobody needs the core.
//
// If other programs use the core, a yield may take milliseconds. So after a long yield, the next
// waits do not yield. With fewer cores than ranks, the number of waits without a yield is small at
// first, and doubles each time if yields stay long. A rank with a core of its own skips the largest
// number at once: it rarely needs to yield, and data loaders often use its core.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace farandole {

// WaitPolicy only decides; it never sleeps. While spinning it reads the clock rarely, because that
// costs as much as checking the flags. Only one thread at a time may use it: the holder of the
// progress lock.
class WaitPolicy {
 public:
  enum class Action : std::uint8_t {
    kCheck,  // check the flags again at once, because a pause takes longer than a flag's arrival
    kPoll,   // pause the processor briefly, then check the flags
    kYield,  // yield the core, then check the flags
    kSleep,  // prepare_sleep(), check the flags, sleep()
  };

  // While spinning:
  static constexpr auto kSpin = std::chrono::microseconds(100);  // at least, before a sleep
  static constexpr auto kSpinBeforeYields = std::chrono::microseconds(5);
  static constexpr int kChecks = 64;             // checks before the first pause
  static constexpr int kPollsBeforeReading = 4;  // polls before the clock is first read
  static constexpr int kPollsPerReading = 8;     // polls per later reading of the clock

  static constexpr int kPolls = 4;    // polls before the first yield, with fewer cores than ranks
  static constexpr int kYields = 16;  // yields before the first sleep
  // A yield that takes at least this long is a long yield. This is longer than a few other ranks
  // need on this core, and shorter than the time slice of another program (3 ms or more).
  static constexpr auto kLongYield = std::chrono::milliseconds(1);
  static constexpr int kSkippedWaitsMin = 16;
  static constexpr int kSkippedWaitsMax = 4096;

  WaitPolicy(int local_ranks, int cores) : has_own_core_(local_ranks <= cores) {}

  void begin_wait(const Clock& clock);
  // Returns what to do after a check of the flags found nothing new. The first call after kSleep
  // also calls begin_wait().
  Action next(const Clock& clock);

 private:
  Action next_while_spinning(const Clock& clock);
  Action yield(TimePoint now);
  Action sleep();
  void learn_from_yield(const Clock& clock);

  bool has_own_core_;
  bool asleep_ = false;
  bool yielded_ = false;           // the last action was a yield, at yield_began_
  bool all_yields_short_ = false;  // this wait has yielded, and all yields were short
  TimePoint spin_began_{};         // when the clock was first read
  TimePoint yield_began_{};
  int polls_ = 0;
  int yields_ = 0;
  int skipped_waits_ = 0;                      // how many more waits do not yield
  int skipped_waits_next_ = kSkippedWaitsMin;  // skipped_waits_ after the next long yield
};

// Call it after a check of the flags found nothing new. Does what the policy says, but returns
// false instead of sleeping.
bool wait_awake(WaitPolicy& policy, const Clock& clock);

}  // namespace farandole
