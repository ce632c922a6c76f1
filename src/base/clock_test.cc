#include "base/clock.h"

#include <gtest/gtest.h>

namespace farandole {
namespace {

using namespace std::chrono_literals;

TEST(SystemClock, never_goes_back) {
  const SystemClock clock;
  TimePoint last_time = clock.now();
  for (int i = 0; i < 1000; ++i) {
    const TimePoint now = clock.now();
    ASSERT_GE(now, last_time);
    last_time = now;
  }
}

TEST(SimulatedClock, moves_only_when_advanced) {
  SimulatedClock clock;
  const TimePoint start = clock.now();
  EXPECT_EQ(clock.now(), start);
  clock.advance(3s);
  clock.advance(1ms);
  EXPECT_EQ(clock.now() - start, 3001ms);
}

}  // namespace
}  // namespace farandole
