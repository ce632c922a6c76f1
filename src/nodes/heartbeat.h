// Heartbeat: how launchers of an elastic job notice that another one has stopped, although its host
// still answers, for example because somebody has frozen a container. Each tells the other one
// regularly that it is alive. It is a pure state machine.
#pragma once

#include <algorithm>
#include <chrono>

#include "base/format.h"
#include "base/time_point.h"
#include "farandole/status.h"

namespace farandole {

// One end of a connection.
class Heartbeat {
 public:
  static constexpr auto kPause = std::chrono::seconds(2);  // between two messages
  // A launcher that has said nothing for so long is lost.
  static constexpr auto kSilenceMax = std::chrono::seconds(10);

  explicit Heartbeat(TimePoint now) : heard_(now), looked_(now), next_(now + kPause) {}

  // Call it at each look for messages, after all that have come were read.
  void looked(bool has_heard, TimePoint now) {
    // We have been stopped ourselves, and with us perhaps the other one.
    if (has_heard || now > looked_ + 2 * kPause) heard_ = now;
    looked_ = now;
  }
  bool is_silent() const { return looked_ >= heard_ + kSilenceMax; }
  // Whether to tell the other one now that we are alive. Returns true once for each time.
  bool is_due(TimePoint now) {
    if (now < next_) return false;
    next_ = now + kPause;
    return true;
  }
  TimePoint deadline() const { return std::min(next_, heard_ + kSilenceMax); }

 private:
  TimePoint heard_;
  TimePoint looked_;
  TimePoint next_;
};

// The error of a connection whose other end is silent.
inline Status silence_error() {
  return Status::rebuild_group(
      format_text("it has said nothing for {} s, although its host answers; it may be stopped",
                  std::chrono::seconds(Heartbeat::kSilenceMax).count()));
}

}  // namespace farandole
