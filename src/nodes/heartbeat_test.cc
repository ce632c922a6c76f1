#include "nodes/heartbeat.h"

#include <gtest/gtest.h>

namespace farandole {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr TimePoint kStart = TimePoint() + seconds(1000);

TEST(Heartbeat, IsDueOncePerInterval) {
  Heartbeat heartbeat(kStart);
  EXPECT_EQ(heartbeat.next_time(), kStart + seconds(2));
  EXPECT_FALSE(heartbeat.is_due(kStart + seconds(2) - milliseconds(1)));
  EXPECT_TRUE(heartbeat.is_due(kStart + seconds(2)));
  EXPECT_FALSE(heartbeat.is_due(kStart + seconds(3)));
  EXPECT_TRUE(heartbeat.is_due(kStart + seconds(9)));
}

TEST(Silence, IsTooLongAfterTenSecondsWithoutAMessage) {
  Silence silence(kStart);
  for (int second = 1; second < 10; ++second) {
    silence.record_check(second == 4, kStart + seconds(second));
    EXPECT_FALSE(silence.is_too_long());
  }
  silence.record_check(false, kStart + seconds(13));
  EXPECT_FALSE(silence.is_too_long()) << "it was heard after four seconds";
  EXPECT_EQ(silence.next_check(), kStart + seconds(15));
  silence.record_check(false, kStart + seconds(14));
  EXPECT_TRUE(silence.is_too_long());
}

TEST(Silence, OurOwnStopDoesNotCountAsSilence) {
  Silence silence(kStart);
  silence.record_check(true, kStart + seconds(1));
  silence.record_check(false, kStart + seconds(100));
  EXPECT_FALSE(silence.is_too_long());
  for (int second = 1; second <= 10; ++second)
    silence.record_check(false, kStart + seconds(100 + second));
  EXPECT_TRUE(silence.is_too_long());
}

}  // namespace
}  // namespace farandole
