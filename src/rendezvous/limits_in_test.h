// For tests: limits for waits on a Store.
#pragma once

#include <chrono>
#include <functional>

#include "rendezvous/store.h"

namespace farandole {

inline const std::function<bool()> kNotInterrupted;

// Returns a long limit, so that a test that hangs fails.
inline WaitLimit long_limit() {
  return {std::chrono::steady_clock::now() + std::chrono::seconds(60), kNotInterrupted};
}

}  // namespace farandole
