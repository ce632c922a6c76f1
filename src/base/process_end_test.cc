#include "base/process_end.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

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

TEST(ProcessEnd, AChildIsReapedOnceItHasEnded) {
  const pid_t exited_child = ::fork();
  if (exited_child == 0) ::_exit(3);
  const pid_t waiting_child = ::fork();
  if (waiting_child == 0) {
    ::pause();
    ::_exit(0);
  }
  std::optional<ProcessEnd> end;
  while (!(end = reap(exited_child))) ::poll(nullptr, 0, 1);
  EXPECT_EQ(end->code, 3);
  EXPECT_FALSE(reap(waiting_child).has_value());
  ::kill(waiting_child, SIGKILL);
  while (!(end = reap(waiting_child))) ::poll(nullptr, 0, 1);
  EXPECT_EQ(end->signal, SIGKILL);
}

}  // namespace
}  // namespace farandole
