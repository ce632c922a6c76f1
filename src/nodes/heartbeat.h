// How node 0 of an elastic job notices that another launcher has stopped, for example because its
// container was frozen. The host of such a launcher still answers, so the connection does not end.
// The launcher tells node 0 regularly that it runs (Heartbeat). Node 0 measures the time without
// messages (Silence). Both are pure state machines.
#pragma once

#include <chrono>

#include "base/format.h"
#include "base/time_point.h"
#include "farandole/status.h"

namespace farandole {

class Heartbeat {
 public:
  static constexpr auto kInterval = std::chrono::seconds(2);  // the pause between two messages

  explicit Heartbeat(TimePoint now) : next_time_(now + kInterval) {}

  // Returns whether the next message must be sent now. Returns true once for each message.
  bool is_due(TimePoint now) {
    if (now < next_time_) return false;
    next_time_ = now + kInterval;
    return true;
  }
  TimePoint next_time() const { return next_time_; }

 private:
  TimePoint next_time_;
};

class Silence {
 public:
  // If a launcher has sent no message for this time, it is lost.
  static constexpr auto kTimeMax = std::chrono::seconds(10);

  explicit Silence(TimePoint now) : last_message_(now), last_check_(now) {}

  // Call it each time when all messages that have arrived are read.
  void record_check(bool got_message, TimePoint now) {
    // If much time has passed since the last check, this process was stopped. The other launcher
    // may have been stopped, too, so the time without messages counts from now.
    if (got_message || now > last_check_ + 2 * Heartbeat::kInterval) last_message_ = now;
    last_check_ = now;
  }
  bool is_too_long() const { return last_check_ >= last_message_ + kTimeMax; }
  // When to check again, even if no message arrives. Checks must not be rarer than the messages,
  // because a long time between two checks counts as a stop of this process.
  TimePoint next_check() const { return last_check_ + Heartbeat::kInterval; }
  static Status error() {
    return Status::rebuild_group(
        format_text("it has said nothing for {} s, although its host answers; it may be stopped",
                    std::chrono::seconds(kTimeMax).count()));
  }

 private:
  TimePoint last_message_;
  TimePoint last_check_;
};

}  // namespace farandole
