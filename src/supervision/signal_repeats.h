// SignalRepeats: finds signals that belong to one request to end the job. A terminal and a wrapper
// may send the same Ctrl-C. Ctrl-C may also end the reader of our output (SIGPIPE), before it
// reaches us.
#pragma once

#include <signal.h>

#include <chrono>
#include <utility>

#include "base/time_point.h"

namespace farandole {

class SignalRepeats {
 public:
  static constexpr auto kTime = std::chrono::milliseconds(500);

  // Call it for each signal that asks the job to end. Returns whether the signal repeats the one
  // before: this is the same signal or SIGPIPE, less than kTime ago.
  bool is_repeat(int signal, TimePoint now) {
    const bool is_soon = now - std::exchange(last_time_, now) < kTime;
    const int last_signal = std::exchange(last_signal_, signal);
    return is_soon && (signal == last_signal || last_signal == SIGPIPE);
  }

 private:
  int last_signal_ = 0;  // 0: none
  TimePoint last_time_{};
};

}  // namespace farandole
