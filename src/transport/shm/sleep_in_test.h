// For tests: sleeping on doorbells, as the holder of the progress lock does. If no doorbell rings
// within a minute, the test fails.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

#include "transport/shm/doorbells.h"

namespace farandole {

// Sleeps with a ticket from prepare_sleep(). Returns false if no doorbell rang.
inline bool sleep_and_see_bell(Doorbells& doorbells, std::uint32_t ticket) {
  constexpr auto kTestTimeout = std::chrono::seconds(60);
  const auto begin = std::chrono::steady_clock::now();
  doorbells.sleep(ticket, kTestTimeout);
  return std::chrono::steady_clock::now() - begin < kTestTimeout;
}

template <class Ready>
void sleep_until(Doorbells& doorbells, Ready ready) {
  while (!ready()) {
    const auto ticket = doorbells.prepare_sleep();
    if (ready()) {
      doorbells.cancel_sleep();
      return;
    }
    ASSERT_TRUE(sleep_and_see_bell(doorbells, ticket));
  }
}

}  // namespace farandole
