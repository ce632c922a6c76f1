// Limits of waiting for the tests of this room.
#pragma once

#include <chrono>
#include <functional>

#include "rendezvous/store.h"

namespace farandole {

inline const std::function<bool()> kNotInterrupted;

// A long limit that only guards against hanging.
inline WaitLimit long_limit() {
  return {std::chrono::steady_clock::now() + std::chrono::seconds(60), kNotInterrupted};
}

}  // namespace farandole
