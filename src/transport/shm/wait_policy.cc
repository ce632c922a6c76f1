#include "transport/shm/wait_policy.h"

#include <sched.h>

#include <algorithm>

#include "base/platform.h"

namespace farandole {

void WaitPolicy::begin_wait(const Clock& clock) {
  if (yielded_) learn_from_yield(clock);
  // If all yields of the last wait were short, yielding is useful again. So after the next long
  // yield, fewer waits will skip their yields.
  if (all_yields_short_) skipped_waits_next_ = std::max(kSkippedWaitsMin, skipped_waits_next_ / 2);
  all_yields_short_ = false;
  asleep_ = false;
  polls_ = 0;
  if (skipped_waits_ > 0) {
    --skipped_waits_;
    yields_ = kYields;
  } else {
    yields_ = 0;
  }
}

WaitPolicy::Action WaitPolicy::next(const Clock& clock) {
  if (asleep_) begin_wait(clock);
  if (yielded_) learn_from_yield(clock);
  if (has_own_core_ ? keeps_spinning(clock) : polls_ < kPolls) {
    ++polls_;
    return has_own_core_ && polls_ <= kChecks ? Action::kCheck : Action::kPoll;
  }
  if (!has_own_core_ && yields_ < kYields) {
    ++yields_;
    yielded_ = true;
    yield_began_ = clock.now();
    return Action::kYield;
  }
  asleep_ = true;
  return Action::kSleep;
}

bool WaitPolicy::keeps_spinning(const Clock& clock) {
  if (polls_ % kPollsPerReading != kPollsPerReading - 1) return true;
  const TimePoint now = clock.now();
  if (polls_ < kPollsPerReading) spin_end_ = now + kSpin;
  return now < spin_end_;
}

void WaitPolicy::learn_from_yield(const Clock& clock) {
  yielded_ = false;
  all_yields_short_ = clock.now() - yield_began_ < kLongYield;
  if (all_yields_short_) return;
  yields_ = kYields;
  skipped_waits_ = skipped_waits_next_;
  skipped_waits_next_ = std::min(kSkippedWaitsMax, skipped_waits_next_ * 2);
}

bool wait_awake(WaitPolicy& policy, const Clock& clock) {
  switch (policy.next(clock)) {
    case WaitPolicy::Action::kCheck:
      return true;
    case WaitPolicy::Action::kPoll:
      cpu_pause();
      return true;
    case WaitPolicy::Action::kYield:
      ::sched_yield();
      return true;
    case WaitPolicy::Action::kSleep:
      return false;
  }
  return false;
}

}  // namespace farandole
