#include "transport/shm/wait_policy.h"

#include <sched.h>

#include <algorithm>

#include "base/platform.h"

namespace farandole {

void WaitPolicy::begin_wait(const Clock& clock) {
  if (has_yielded_) learn_from_yield(clock);
  // If all yields of the last wait were short, yielding is useful again. So fewer waits will skip
  // their yields after the next long yield.
  if (all_yields_short_) skipped_waits_next_ = std::max(kSkippedWaitsMin, skipped_waits_next_ / 2);
  all_yields_short_ = false;
  is_asleep_ = false;
  polls_ = 0;
  if (skipped_waits_ > 0) {
    --skipped_waits_;
    yields_ = kYieldsBeforeSleep;
  } else {
    yields_ = 0;
  }
}

WaitPolicy::Action WaitPolicy::next_action(const Clock& clock) {
  if (is_asleep_) begin_wait(clock);
  if (has_yielded_) learn_from_yield(clock);
  if (has_own_core_) return next_while_spinning(clock);
  if (polls_ < kPollsBeforeYield) {
    ++polls_;
    return Action::kPoll;
  }
  return yields_ < kYieldsBeforeSleep ? yield(clock.now()) : sleep();
}

WaitPolicy::Action WaitPolicy::next_while_spinning(const Clock& clock) {
  const int polls = polls_++;
  if (polls % kPollsPerClockRead == kPollsBeforeClockRead) {
    const TimePoint now = clock.now();
    if (polls == kPollsBeforeClockRead) spin_began_ = now;
    if (yields_ < kYieldsBeforeSleep) {
      if (now - spin_began_ >= kSpinTimeBeforeYields) return yield(now);
    } else if (now - spin_began_ >= kSpinTime) {
      return sleep();
    }
  }
  return polls < kChecksBeforePause ? Action::kCheck : Action::kPoll;
}

WaitPolicy::Action WaitPolicy::yield(TimePoint now) {
  ++yields_;
  has_yielded_ = true;
  yield_began_ = now;
  return Action::kYield;
}

WaitPolicy::Action WaitPolicy::sleep() {
  is_asleep_ = true;
  return Action::kSleep;
}

void WaitPolicy::learn_from_yield(const Clock& clock) {
  has_yielded_ = false;
  all_yields_short_ = clock.now() - yield_began_ < kLongYieldTime;
  if (all_yields_short_) return;
  yields_ = kYieldsBeforeSleep;
  if (has_own_core_) skipped_waits_next_ = kSkippedWaitsMax;
  skipped_waits_ = skipped_waits_next_;
  skipped_waits_next_ = std::min(kSkippedWaitsMax, skipped_waits_next_ * 2);
}

bool wait_awake(WaitPolicy& policy, const Clock& clock) {
  switch (policy.next_action(clock)) {
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
