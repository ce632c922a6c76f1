// Grace: how long a planned submission may wait in vain for the predicted step. The time grows if a
// wait turns out to have been the program's own pace, so that no member was stuck.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/time_point.h"

namespace farandole {

class Grace {
 public:
  explicit Grace(Duration shortest) : shortest_(shortest), grace_(shortest) {}

  // There was progress: at this time, or at a time that only the next look() will know.
  void moved(TimePoint now) { since_ = now_ = now; }
  void moved() { since_.reset(); }
  void time_is(TimePoint now) { now_ = now; }

  // When the grace period ends. Call it only while a submission waits.
  TimePoint end() const { return since_.value_or(now_) + grace_; }
  bool is_over(TimePoint now) {
    now_ = now;
    if (!since_) since_ = now;
    return now >= end();
  }

  // We have raised, because the grace period was over. Until then the user had seen this many
  // completions.
  void raised(std::uint32_t waits) { waits_at_raise_ = waits; }
  // If the user submits without having seen another completion, it was not stuck.
  void submitted(std::uint32_t waits) {
    if (!waits_at_raise_) return;
    grace_ = *waits_at_raise_ == waits ? std::min(2 * grace_, kLongest * shortest_) : shortest_;
    waits_at_raise_.reset();
  }

 private:
  static constexpr int kLongest = 16;

  Duration shortest_;
  Duration grace_;
  TimePoint now_;
  std::optional<TimePoint> since_;
  std::optional<std::uint32_t> waits_at_raise_;
};

}  // namespace farandole
