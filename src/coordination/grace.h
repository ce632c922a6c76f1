// Grace: how long a planned submission may wait in vain for the step that was predicted. Longer
// when a wait turns out to have been the program's own pace, and nobody was stuck.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/time_point.h"

namespace farandole {

class Grace {
 public:
  explicit Grace(Duration shortest) : shortest_(shortest), grace_(shortest) {}

  // Something moved, at a time or at one that only the next look will know.
  void moved(TimePoint now) { since_ = now_ = now; }
  void moved() { since_.reset(); }
  void time_is(TimePoint now) { now_ = now; }

  // Something waits, as it is asked for.
  TimePoint end() const { return since_.value_or(now_) + grace_; }
  bool is_over(TimePoint now) {
    now_ = now;
    if (!since_) since_ = now;
    return now >= end();
  }

  // It was over, and we have raised; until then the user had seen so many completions.
  void raised(std::uint32_t waits) { waits_at_raise_ = waits; }
  // Who submits without having seen anything more was not stuck.
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
