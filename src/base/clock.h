// Clock: monotonic time of one host. Clocks of two hosts are never compared.
#pragma once

#include <chrono>

#include "base/time_point.h"

namespace farandole {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;  // any thread
};

class SystemClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

// A clock that only moves when advance() is called. For one thread.
class SimulatedClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void advance(Duration by) { now_ += by; }

 private:
  TimePoint now_{};
};

}  // namespace farandole
