// Grace: how long a planned submission may wait for the predicted step before its member raises.
// The time grows after a needless raise. A raise is needless if the program was only slow and no
// member was stuck.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/time_point.h"

namespace farandole {

class Grace {
 public:
  explicit Grace(Duration shortest_time)
      : shortest_time_(shortest_time), grace_time_(shortest_time) {}

  // Restarts the grace period after progress. Without `now`, the period begins at the next
  // is_over().
  void restart(TimePoint now) { period_start_ = now_ = now; }
  void restart() { period_start_.reset(); }
  void set_time(TimePoint now) { now_ = now; }

  // Returns when the grace period ends. Call it only while a submission waits.
  TimePoint end() const { return period_start_.value_or(now_) + grace_time_; }
  bool is_over(TimePoint now) {
    now_ = now;
    if (!period_start_) period_start_ = now;
    return now >= end();
  }

  // Call it when this member raises, with SubmissionContext::waits of its last submission.
  void record_raise(std::uint32_t waits) { waits_at_raise_ = waits; }
  // Call it for every submission. If the program submits a call and has seen no completion since
  // the raise, it did not wait for one. So the program was not stuck, and the raise was needless.
  void record_submission(std::uint32_t waits) {
    if (!waits_at_raise_) return;
    grace_time_ = *waits_at_raise_ == waits ? std::min(2 * grace_time_, kFactorMax * shortest_time_)
                                            : shortest_time_;
    waits_at_raise_.reset();
  }

 private:
  static constexpr int kFactorMax = 16;

  Duration shortest_time_;
  Duration grace_time_;
  TimePoint now_;
  std::optional<TimePoint> period_start_;
  std::optional<std::uint32_t> waits_at_raise_;
};

}  // namespace farandole
