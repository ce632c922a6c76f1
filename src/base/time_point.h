// Points in time on the monotonic clock of one host. Rooms that may not read the clock get the time
// as an argument.
#pragma once

#include <chrono>
#include <cstdint>

namespace farandole {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

// In nanoseconds of the monotonic clock.
inline std::int64_t nanoseconds_of(TimePoint time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace farandole
