// Every implementation of Store::wait checks about every 100 ms whether it should continue to wait.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>

#include "rendezvous/store.h"

namespace farandole {

inline constexpr auto kWaitSlice = std::chrono::milliseconds(100);

inline TimePoint next_slice_end(const WaitLimit& limit) {
  return std::min<TimePoint>(limit.deadline, std::chrono::steady_clock::now() + kWaitSlice);
}

// Returns ok if the wait may continue, otherwise the kRetry with which it ends.
inline Status wait_is_over(const std::string& key, const WaitLimit& limit) {
  if (limit.interrupted && limit.interrupted())
    return Status::retry("interrupted while waiting for the rendezvous key `" + key + "`");
  if (std::chrono::steady_clock::now() >= limit.deadline)
    return Status::retry("timed out while waiting for the rendezvous key `" + key + "`");
  return {};
}

}  // namespace farandole
