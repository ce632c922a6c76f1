#include "rendezvous/clock_offset.h"

#include <chrono>

#include "base/try.h"

namespace farandole {

Result<ClockOffset> measure_clock_offset(Store& store) {
  constexpr int kRequestCount = 16;
  ClockOffset best{.offset = {}, .error = Duration::max()};
  for (int i = 0; i < kRequestCount; ++i) {
    const TimePoint request_time = std::chrono::steady_clock::now();
    FARANDOLE_TRY_ASSIGN(const TimePoint store_time, store.clock());
    const Duration half_round_trip = (std::chrono::steady_clock::now() - request_time) / 2;
    if (half_round_trip < best.error)
      best = {.offset = store_time - (request_time + half_round_trip), .error = half_round_trip};
  }
  return best;
}

}  // namespace farandole
