#include "network/tcp/sealing_speed.h"

#include <gtest/gtest.h>

namespace farandole {
namespace {

TEST(SealingSpeed, IsAtLeastThatOfOneRecord) {
  const auto speed = measure_sealing_speed(std::chrono::milliseconds(1));
  ASSERT_TRUE(speed.ok()) << speed.status().message();
  EXPECT_GT(*speed, 0);
}

}  // namespace
}  // namespace farandole
