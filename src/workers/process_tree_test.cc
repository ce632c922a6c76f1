#include "workers/process_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>

namespace farandole {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST(ProcessTree, FindsAllGenerations) {
  const ParentByPid parent_by_pid{{2, 1}, {3, 2}, {4, 3}, {5, 2}, {6, 1}, {7, 6}};
  EXPECT_THAT(descendants_of(2, parent_by_pid), UnorderedElementsAre(3, 4, 5));
  EXPECT_THAT(descendants_of(4, parent_by_pid), IsEmpty());
}

TEST(ProcessTree, IncludesThisProcess) {
  const ParentByPid table = read_process_table();
  ASSERT_TRUE(table.contains(::getpid()));
  EXPECT_EQ(table.at(::getpid()), ::getppid());
}

// Starts a child and, in a session of its own, a grandchild. Both only wait. Returns the
// grandchild's pid.
pid_t start_two_generations() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  if (::fork() == 0) {
    const pid_t grandchild = ::fork();
    if (grandchild == 0) {
      ::setsid();
      const pid_t self = ::getpid();
      if (::write(ends[1], &self, sizeof(self)) != sizeof(self)) ::_exit(1);
    }
    for (;;) ::pause();
  }
  pid_t grandchild = 0;
  EXPECT_EQ(::read(ends[0], &grandchild, sizeof(grandchild)),
            static_cast<ssize_t>(sizeof(grandchild)));
  ::close(ends[0]);
  ::close(ends[1]);
  return grandchild;
}

TEST(ProcessTree, EndsAllGenerations) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  sigset_t child_signal;
  sigset_t original_mask;
  sigemptyset(&child_signal);
  sigaddset(&child_signal, SIGCHLD);
  ASSERT_EQ(::sigprocmask(SIG_BLOCK, &child_signal, &original_mask), 0);
  const pid_t grandchild = start_two_generations();
  EXPECT_TRUE(end_descendants(std::chrono::steady_clock::now() + std::chrono::seconds(60)));
  EXPECT_EQ(::kill(grandchild, 0), -1);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  ::sigprocmask(SIG_SETMASK, &original_mask, nullptr);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

}  // namespace
}  // namespace farandole
