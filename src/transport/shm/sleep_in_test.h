// How the tests sleep on doorbells, as the holder of the progress lock does. A bell that does not
// ring within a minute was lost, which fails the test.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

#include "transport/shm/doorbells.h"

namespace farandole {

// Sleeps after prepare_sleep() has given the ticket. False if no bell rang.
inline bool sleeps_until_the_bell(Doorbells& doorbells, std::uint32_t ticket) {
  constexpr auto kHangGuard = std::chrono::seconds(60);
  const auto begin = std::chrono::steady_clock::now();
  doorbells.sleep(ticket, kHangGuard);
  return std::chrono::steady_clock::now() - begin < kHangGuard;
}

template <class Ready>
void sleep_until(Doorbells& doorbells, Ready ready) {
  while (!ready()) {
    const auto ticket = doorbells.prepare_sleep();
    if (ready()) {
      doorbells.cancel_sleep();
      return;
    }
    ASSERT_TRUE(sleeps_until_the_bell(doorbells, ticket));
  }
}

}  // namespace farandole
