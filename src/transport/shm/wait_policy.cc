#include "transport/shm/wait_policy.h"

#include <algorithm>

namespace farandole {

void WaitPolicy::begin_wait(TimePoint now) {
  if (yielded_) learn_from_yield(now);
  // A wait whose yields were all short is a reason to trust yielding again.
  if (good_yields_) skipped_waits_next_ = std::max(kSkippedWaitsMin, skipped_waits_next_ / 2);
  good_yields_ = false;
  asleep_ = false;
  began_ = now;
  polls_ = 0;
  if (skipped_waits_ > 0) {
    --skipped_waits_;
    yields_ = kYields;
  } else {
    yields_ = 0;
  }
}

WaitPolicy::Action WaitPolicy::next(TimePoint now) {
  if (asleep_) begin_wait(now);
  if (yielded_) learn_from_yield(now);
  if (own_core_ ? now - began_ < kSpin : polls_ < kPolls) {
    ++polls_;
    return Action::kPoll;
  }
  if (!own_core_ && yields_ < kYields) {
    ++yields_;
    yielded_ = true;
    yield_began_ = now;
    return Action::kYield;
  }
  asleep_ = true;
  return Action::kSleep;
}

void WaitPolicy::learn_from_yield(TimePoint now) {
  yielded_ = false;
  good_yields_ = now - yield_began_ < kLongYield;
  if (good_yields_) return;
  yields_ = kYields;
  skipped_waits_ = skipped_waits_next_;
  skipped_waits_next_ = std::min(kSkippedWaitsMax, skipped_waits_next_ * 2);
}

}  // namespace farandole
