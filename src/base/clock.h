// Clock: monotonic time of one host. Clocks of two hosts are never compared.
#pragma once

#include <atomic>
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

// A clock that only moves when advance() is called. Any thread may call all functions.
class SimulatedClock final : public Clock {
 public:
  TimePoint now() const override { return TimePoint(Duration(elapsed_.load())); }
  void advance(Duration time) { elapsed_ += time.count(); }

 private:
  std::atomic<Duration::rep> elapsed_{0};
};

}  // namespace farandole
