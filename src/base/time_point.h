// Points in time on the monotonic clock of one host. Also for rooms that may not read the clock
// themselves and get the time as an argument.
#pragma once

#include <chrono>

namespace farandole {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

}  // namespace farandole
