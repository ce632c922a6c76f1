#include "coordination/grace.h"

#include <gtest/gtest.h>

namespace farandole {
namespace {

constexpr auto kShort = std::chrono::milliseconds(10);

// How long the grace period is, from the beginning of a wait.
Duration length(Grace& grace) {
  const TimePoint now(std::chrono::hours(1));
  grace.moved(now);
  return grace.end() - now;
}

TEST(Grace, BeginsWithTheLastThatMoved) {
  Grace grace(kShort);
  const TimePoint start(std::chrono::hours(1));
  grace.moved(start);
  EXPECT_FALSE(grace.is_over(start + kShort / 2));
  grace.moved(start + kShort / 2);
  EXPECT_FALSE(grace.is_over(start + kShort));
  EXPECT_TRUE(grace.is_over(start + kShort / 2 + kShort));
}

TEST(Grace, WhatMovedAtAnUnknownTimeMovedAtTheNextLook) {
  Grace grace(kShort);
  const TimePoint start(std::chrono::hours(1));
  grace.moved(start);
  grace.moved();
  EXPECT_EQ(grace.end(), start + kShort);
  EXPECT_FALSE(grace.is_over(start + 5 * kShort));
  EXPECT_TRUE(grace.is_over(start + 6 * kShort));
}

TEST(Grace, DoublesWhenNobodyWasStuckAndIsShortAgainWhenSomebodyWas) {
  Grace grace(kShort);
  EXPECT_EQ(length(grace), kShort);
  for (int doubled = 2; doubled <= 16; doubled *= 2) {
    grace.raised(7);
    grace.submitted(7);
    grace.submitted(7);  // counts only once
    EXPECT_EQ(length(grace), doubled * kShort);
  }
  grace.raised(7);
  grace.submitted(7);
  EXPECT_EQ(length(grace), 16 * kShort);
  grace.raised(7);
  grace.submitted(8);
  EXPECT_EQ(length(grace), kShort);
}

}  // namespace
}  // namespace farandole
