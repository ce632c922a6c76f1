#include "nodes/heartbeat.h"

#include <gtest/gtest.h>

namespace farandole {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr TimePoint kStart = TimePoint() + seconds(1000);

TEST(Heartbeat, IsDueAgainAndAgain) {
  Heartbeat heartbeat(kStart);
  EXPECT_FALSE(heartbeat.is_due(kStart + seconds(2) - milliseconds(1)));
  EXPECT_TRUE(heartbeat.is_due(kStart + seconds(2)));
  EXPECT_FALSE(heartbeat.is_due(kStart + seconds(3)));
  EXPECT_TRUE(heartbeat.is_due(kStart + seconds(9)));
  EXPECT_EQ(heartbeat.deadline(), kStart + seconds(10)) << "then the other end is silent";
}

TEST(Heartbeat, TheOtherEndIsSilentAfterTenSecondsWithoutAMessage) {
  Heartbeat heartbeat(kStart);
  for (int second = 1; second < 10; ++second) {
    heartbeat.looked(second == 4, kStart + seconds(second));
    EXPECT_FALSE(heartbeat.is_silent());
  }
  heartbeat.looked(false, kStart + seconds(13));
  EXPECT_FALSE(heartbeat.is_silent()) << "it was heard after four seconds";
  heartbeat.looked(false, kStart + seconds(14));
  EXPECT_TRUE(heartbeat.is_silent());
}

TEST(Heartbeat, OurOwnPauseIsNotTheOthersSilence) {
  Heartbeat heartbeat(kStart);
  heartbeat.looked(true, kStart + seconds(1));
  heartbeat.looked(false, kStart + seconds(100));
  EXPECT_FALSE(heartbeat.is_silent());
  for (int second = 1; second <= 10; ++second)
    heartbeat.looked(false, kStart + seconds(100 + second));
  EXPECT_TRUE(heartbeat.is_silent());
}

}  // namespace
}  // namespace farandole
