// Times as everybody speaks of them: moments on the monotonic clock of one host, also where nobody
// may read that clock.
#pragma once

#include <chrono>

namespace farandole {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

}  // namespace farandole
