#include "coordination/grace.h"

#include <gtest/gtest.h>

namespace farandole {
namespace {

constexpr auto kShort = std::chrono::milliseconds(10);

// Restarts the grace period and returns how long it is now.
Duration length_after_restart(Grace& grace) {
  const TimePoint now(std::chrono::hours(1));
  grace.restart(now);
  return grace.end() - now;
}

TEST(Grace, BeginsWithTheLastProgress) {
  Grace grace(kShort);
  const TimePoint start(std::chrono::hours(1));
  grace.restart(start);
  EXPECT_FALSE(grace.is_over(start + kShort / 2));
  grace.restart(start + kShort / 2);
  EXPECT_FALSE(grace.is_over(start + kShort));
  EXPECT_TRUE(grace.is_over(start + kShort / 2 + kShort));
}

TEST(Grace, ARestartAtAnUnknownTimeBeginsAtTheNextCheck) {
  Grace grace(kShort);
  const TimePoint start(std::chrono::hours(1));
  grace.restart(start);
  grace.restart();
  EXPECT_EQ(grace.end(), start + kShort);
  EXPECT_FALSE(grace.is_over(start + 5 * kShort));
  EXPECT_TRUE(grace.is_over(start + 6 * kShort));
}

TEST(Grace, DoublesAfterANeedlessRaiseAndIsShortAgainAfterANeededOne) {
  Grace grace(kShort);
  EXPECT_EQ(length_after_restart(grace), kShort);
  for (int factor = 2; factor <= 16; factor *= 2) {
    grace.record_raise(7);
    grace.record_submission(7);
    grace.record_submission(7);  // a raise counts as needless only once
    EXPECT_EQ(length_after_restart(grace), factor * kShort);
  }
  grace.record_raise(7);
  grace.record_submission(7);
  EXPECT_EQ(length_after_restart(grace), 16 * kShort);
  grace.record_raise(7);
  grace.record_submission(8);
  EXPECT_EQ(length_after_restart(grace), kShort);
}

}  // namespace
}  // namespace farandole
