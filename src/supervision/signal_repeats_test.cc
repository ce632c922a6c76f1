#include "supervision/signal_repeats.h"

#include <gtest/gtest.h>

namespace farandole {
namespace {

using std::chrono::milliseconds;

class SignalRepeatsTest : public ::testing::Test {
 protected:
  bool is_repeat(int signal, milliseconds time) {
    return repeats_.is_repeat(signal, kStart + time);
  }

 private:
  static constexpr TimePoint kStart{std::chrono::seconds(1000)};
  SignalRepeats repeats_;
};

TEST_F(SignalRepeatsTest, TheSameSignalWithinTheTimeIsARepeat) {
  EXPECT_FALSE(is_repeat(SIGINT, milliseconds(0)));
  EXPECT_TRUE(is_repeat(SIGINT, milliseconds(499)));
  EXPECT_TRUE(is_repeat(SIGINT, milliseconds(998)));
  EXPECT_FALSE(is_repeat(SIGINT, milliseconds(1498)));
}

TEST_F(SignalRepeatsTest, AnotherSignalIsNoRepeat) {
  EXPECT_FALSE(is_repeat(SIGTERM, milliseconds(0)));
  EXPECT_FALSE(is_repeat(SIGINT, milliseconds(1)));
  EXPECT_FALSE(is_repeat(SIGPIPE, milliseconds(2)));
}

TEST_F(SignalRepeatsTest, CtrlCMayEndTheReaderOfTheOutputFirst) {
  EXPECT_FALSE(is_repeat(SIGPIPE, milliseconds(0)));
  EXPECT_TRUE(is_repeat(SIGINT, milliseconds(10)));
  EXPECT_FALSE(is_repeat(SIGINT, milliseconds(600)));
}

}  // namespace
}  // namespace farandole
