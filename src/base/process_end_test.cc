#include "base/process_end.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace farandole {
namespace {

TEST(ProcessEnd, IsDescribedInWords) {
  EXPECT_EQ(describe(ProcessEnd{.code = 3}), "exited with code 3");
  EXPECT_EQ(describe(ProcessEnd{.signal = SIGKILL}), "killed by signal 9 (SIGKILL)");
}

TEST(ProcessEnd, NotEverySignalHasAName) {
  EXPECT_EQ(signal_name(SIGTERM), "SIGTERM");
  EXPECT_EQ(signal_name(SIGRTMIN + 3), "signal " + std::to_string(SIGRTMIN + 3));
  EXPECT_EQ(signal_name(99), "signal 99");
}

TEST(ProcessEnd, HasTheExitCodeThatShellsReport) {
  EXPECT_EQ((ProcessEnd{.code = 3}).exit_code(), 3);
  EXPECT_EQ((ProcessEnd{.signal = SIGKILL}).exit_code(), 137);
}

}  // namespace
}  // namespace farandole
