// Points in time on the monotonic clock of one host. Rooms that may not read the clock get them as
// arguments.
#pragma once

#include <chrono>

namespace farandole {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

}  // namespace farandole
