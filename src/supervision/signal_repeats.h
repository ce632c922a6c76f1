// SignalRepeats: finds signals that belong to one request to end the job. A terminal and a wrapper
// may send the same Ctrl-C. Ctrl-C may also end the reader of our output, so that SIGPIPE reaches
// us before SIGINT.
#pragma once

#include <signal.h>

#include <chrono>
#include <utility>

#include "base/time_point.h"

namespace farandole {

class SignalRepeats {
 public:
  static constexpr auto kRepeatTimeMax = std::chrono::milliseconds(500);

  // Call it for each signal that asks the job to end. Returns whether the previous signal came less
  // than kRepeatTimeMax ago, and was the same signal or SIGPIPE.
  bool is_repeat(int signal, TimePoint now) {
    const bool is_soon = now - std::exchange(last_time_, now) < kRepeatTimeMax;
    const int last_signal = std::exchange(last_signal_, signal);
    return is_soon && (signal == last_signal || last_signal == SIGPIPE);
  }

 private:
  int last_signal_ = 0;  // 0: none
  TimePoint last_time_{};
};

}  // namespace farandole
