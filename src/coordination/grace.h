// Grace: how long a planned submission may wait for the predicted step before its member raises.
// The time grows after a needless raise: the program was only slow, and no member was stuck.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/time_point.h"

namespace farandole {

class Grace {
 public:
  explicit Grace(Duration shortest) : shortest_(shortest), grace_(shortest) {}

  // Restarts the period after progress. Without `now`, the period begins at the next is_over().
  void restart(TimePoint now) { since_ = now_ = now; }
  void restart() { since_.reset(); }
  void set_time(TimePoint now) { now_ = now; }

  // Returns when the grace period ends. Call it only while a submission waits.
  TimePoint end() const { return since_.value_or(now_) + grace_; }
  bool is_over(TimePoint now) {
    now_ = now;
    if (!since_) since_ = now;
    return now >= end();
  }

  // Call it when this member raises, with SubmissionContext::waits of its last submission.
  void record_raise(std::uint32_t waits) { waits_at_raise_ = waits; }
  // Call it for every submission. If the program submits without having seen another completion
  // since the raise, it was not stuck, and the raise was needless.
  void record_submission(std::uint32_t waits) {
    if (!waits_at_raise_) return;
    grace_ = *waits_at_raise_ == waits ? std::min(2 * grace_, kFactorMax * shortest_) : shortest_;
    waits_at_raise_.reset();
  }

 private:
  static constexpr int kFactorMax = 16;

  Duration shortest_;
  Duration grace_;
  TimePoint now_;
  std::optional<TimePoint> since_;
  std::optional<std::uint32_t> waits_at_raise_;
};

}  // namespace farandole
