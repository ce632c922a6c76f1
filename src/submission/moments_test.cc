#include "submission/moments.h"

#include <gtest/gtest.h>

namespace farandole {
namespace {

constexpr GroupId kOther = 3;

Moments of_two_groups() {
  Moments moments;
  moments.know(kWorld);
  moments.know(kOther);
  return moments;
}

TEST(Moments, AQuietPointIsASubmissionWithNothingUnseen) {
  Moments moments = of_two_groups();
  EXPECT_EQ(moments.submitted(kWorld, 0), (Moment{.waits = 0, .quiet_points = 1}));
  EXPECT_EQ(moments.submitted(kWorld, 0), (Moment{.waits = 0, .quiet_points = 1}));
  moments.seen(kWorld);
  EXPECT_EQ(moments.submitted(kWorld, 0), (Moment{.waits = 1, .quiet_points = 1}));
  moments.seen(kWorld);
  moments.seen(kWorld);
  EXPECT_EQ(moments.submitted(kWorld, 0), (Moment{.waits = 3, .quiet_points = 2}));
}

TEST(Moments, QuietPointsAreOfAGroupWaitsOfTheRank) {
  Moments moments = of_two_groups();
  (void)moments.submitted(kWorld, 0);
  EXPECT_EQ(moments.submitted(kOther, 0), (Moment{.waits = 0, .quiet_points = 1}));
  moments.seen(kOther);
  EXPECT_EQ(moments.submitted(kWorld, 0), (Moment{.waits = 1, .quiet_points = 1}));
  EXPECT_EQ(moments.submitted(kOther, 0), (Moment{.waits = 1, .quiet_points = 2}));
}

TEST(Moments, WhatIsDroppedIsNotWaitedForAndWasNotSeen) {
  Moments moments = of_two_groups();
  (void)moments.submitted(kWorld, 0);
  moments.dropped(kWorld);
  EXPECT_EQ(moments.submitted(kWorld, 0), (Moment{.waits = 0, .quiet_points = 2}));
}

TEST(Moments, ABatchHasOneNumber) {
  Moments moments = of_two_groups();
  const std::uint32_t first = moments.next_batch();
  EXPECT_EQ(moments.submitted(kWorld, first), (Moment{.waits = 0, .quiet_points = 1, .batch = 1}));
  EXPECT_EQ(moments.submitted(kWorld, first), (Moment{.waits = 0, .quiet_points = 1, .batch = 1}));
  EXPECT_EQ(moments.next_batch(), 2U);
}

}  // namespace
}  // namespace farandole
