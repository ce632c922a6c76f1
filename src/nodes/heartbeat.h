// How node 0 of an elastic job notices that another launcher has stopped, although its host still
// answers, for example because somebody has frozen a container. The launcher tells node 0 regularly
// that it runs (Heartbeat), and node 0 listens (Silence). Both are pure state machines.
#pragma once

#include <chrono>

#include "base/format.h"
#include "base/time_point.h"
#include "farandole/status.h"

namespace farandole {

class Heartbeat {
 public:
  static constexpr auto kPause = std::chrono::seconds(2);  // between two messages

  explicit Heartbeat(TimePoint now) : next_(now + kPause) {}

  // Whether to tell node 0 now. Returns true once for each time.
  bool is_due(TimePoint now) {
    if (now < next_) return false;
    next_ = now + kPause;
    return true;
  }
  TimePoint next() const { return next_; }

 private:
  TimePoint next_;
};

class Silence {
 public:
  // A launcher that has said nothing for this long is lost.
  static constexpr auto kMax = std::chrono::seconds(10);

  explicit Silence(TimePoint now) : heard_(now), looked_(now) {}

  // Call it at each look for messages, after all that have arrived were read.
  void looked(bool has_heard, TimePoint now) {
    // We have been stopped ourselves, and with us perhaps the other launcher.
    if (has_heard || now > looked_ + 2 * Heartbeat::kPause) heard_ = now;
    looked_ = now;
  }
  bool is_too_long() const { return looked_ >= heard_ + kMax; }
  // When to look again, even if no message arrives. Looks must not be rarer than the messages.
  TimePoint next_look() const { return looked_ + Heartbeat::kPause; }
  static Status error() {
    return Status::rebuild_group(
        format_text("it has said nothing for {} s, although its host answers; it may be stopped",
                    std::chrono::seconds(kMax).count()));
  }

 private:
  TimePoint heard_;
  TimePoint looked_;
};

}  // namespace farandole
