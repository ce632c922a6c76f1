#include "supervision/driver_loss.h"

#include <gtest/gtest.h>

namespace farandole {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Verdict = DriverLoss::Verdict;

constexpr TimePoint kLost{seconds(1000)};

TEST(DriverLoss, WithoutALossTheJobGoesOn) {
  DriverLoss loss;
  EXPECT_EQ(loss.verdict(true, kLost), Verdict::kGoOn);
  EXPECT_FALSE(loss.is_lost());
  EXPECT_FALSE(loss.deadline());
}

TEST(DriverLoss, IfNode0EndsTooTheJobEndsAtTheNextCommit) {
  DriverLoss loss;
  loss.record_loss(kLost);
  loss.record_loss(kLost + milliseconds(1));  // only the first time counts
  EXPECT_EQ(loss.verdict(false, kLost + milliseconds(2)), Verdict::kGoOn);
  EXPECT_EQ(loss.deadline(), kLost + DriverLoss::kNode0MessageTimeout);
  EXPECT_EQ(loss.verdict(true, kLost + milliseconds(3)), Verdict::kEndAtNextCommit);
  EXPECT_EQ(loss.time_left(kLost + milliseconds(3)), kEndLimit - milliseconds(3));
  EXPECT_EQ(loss.verdict(true, kLost + seconds(9)), Verdict::kGoOn) << "it is decided";
  EXPECT_FALSE(loss.deadline());
}

TEST(DriverLoss, ANodeThatIsCutOffEndsAlone) {
  DriverLoss loss;
  loss.record_loss(kLost);
  EXPECT_EQ(loss.verdict(false, kLost + DriverLoss::kNode0MessageTimeout), Verdict::kEndNode);
  EXPECT_FALSE(loss.deadline());
}

}  // namespace
}  // namespace farandole
