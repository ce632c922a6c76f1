// For implementations of Store::wait_for_all, which check about every 100 ms whether to continue to
// wait.
#pragma once

#include <algorithm>
#include <chrono>
#include <span>
#include <string>

#include "rendezvous/store.h"

namespace farandole {

inline constexpr auto kWaitSlice = std::chrono::milliseconds(100);

inline TimePoint next_slice_end(const WaitLimit& limit) {
  return std::min<TimePoint>(limit.deadline, std::chrono::steady_clock::now() + kWaitSlice);
}

// Returns ok if the wait for these keys may continue; otherwise returns the kRetry error of the
// wait.
inline Status check_limit(std::span<const std::string> keys, const WaitLimit& limit) {
  const auto waiting_text = [&] {
    const std::string text = " while waiting for the rendezvous key `" + keys.front() + "`";
    return keys.size() == 1 ? text : text + " and " + std::to_string(keys.size() - 1) + " more";
  };
  if (limit.interrupted && limit.interrupted())
    return Status::retry("interrupted" + waiting_text());
  if (std::chrono::steady_clock::now() >= limit.deadline)
    return Status::retry("timed out" + waiting_text());
  return {};
}

}  // namespace farandole
