#include "launcher/keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/launcher_in_test.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::function<int()> keeper_of(const JobOptions& options) {
  return [options] { return run_job(options); };
}

TEST(Keeper, ReturnsTheExitCodeOfTheJob) {
  LauncherInTest keeper(keeper_of(shell_job(2, "exit 7")));
  EXPECT_EQ(keeper.end(), 7);
  EXPECT_THAT(keeper.output(), HasSubstr("exited with code 7"));
}

TEST(Keeper, AProgramThatIsNotThereStartsNothing) {
  JobOptions options = shell_job(2, "");
  options.command = {"farandole-no-such-program"};
  LauncherInTest keeper(keeper_of(options));
  EXPECT_EQ(keeper.end(), 127);
  EXPECT_EQ(keeper.output(), "farandole: command not found: `farandole-no-such-program`\n");
}

TEST(Keeper, ForwardsSignals) {
  LauncherInTest keeper(keeper_of(shell_job(1, waiting_script("trap 'exit 5' USR1"))));
  keeper.read_until("is ready");
  keeper.send(SIGUSR1);
  EXPECT_EQ(keeper.end(), 5);
}

TEST(Keeper, ForwardsTheSignalThatEndsTheJob) {
  LauncherInTest keeper(keeper_of(shell_job(1, waiting_script("trap 'echo bye; exit 0' TERM"))));
  keeper.read_until("is ready");
  keeper.send(SIGTERM);
  EXPECT_EQ(keeper.end(), 128 + SIGTERM);
  EXPECT_THAT(keeper.output(), HasSubstr("[0] bye\n"));
}

// As under nohup. The keeper takes pending signals in the order of their numbers: SIGHUP first.
TEST(Keeper, AnIgnoredSignalStaysIgnored) {
  const JobOptions options = shell_job(1, waiting_script("trap 'exit 5' USR1"));
  LauncherInTest keeper([&options] {
    ::signal(SIGHUP, SIG_IGN);
    return run_job(options);
  });
  keeper.read_until("is ready");
  keeper.send(SIGHUP);
  keeper.send(SIGUSR1);
  EXPECT_EQ(keeper.end(), 5);
  EXPECT_THAT(keeper.output(), Not(HasSubstr("SIGHUP")));
}

TEST(Keeper, StopsWithItsJobAndGoesOnWithIt) {
  LauncherInTest keeper(keeper_of(shell_job(1, waiting_script("trap 'exit 5' USR1"))));
  keeper.read_until("is ready");
  keeper.send(SIGTSTP);
  int status = 0;
  ASSERT_EQ(::waitpid(keeper.pid(), &status, WUNTRACED), keeper.pid());
  ASSERT_TRUE(WIFSTOPPED(status));
  keeper.send(SIGCONT);
  keeper.send(SIGUSR1);
  EXPECT_EQ(keeper.end(), 5);
}

TEST(Keeper, CleansUpWhenTheAgentIsKilled) {
  // Processes that the kernel does not end with the agent, as it does workers.
  LauncherInTest keeper(
      keeper_of(shell_job(1, waiting_script("setsid sleep 1000 & echo child $!"))));
  keeper.read_until("is ready");
  const pid_t agent = keeper.number_after(" of ");
  ::kill(agent, SIGKILL);
  EXPECT_EQ(keeper.end(), 128 + SIGKILL);
  EXPECT_THAT(keeper.output(), HasSubstr("the launcher's agent (pid " + std::to_string(agent) +
                                         ") was killed by signal 9 (SIGKILL); the job has ended"));
  EXPECT_TRUE(is_gone(keeper.number_after("worker ")));
  EXPECT_TRUE(is_gone(keeper.number_after("child ")));
}

TEST(Keeper, TheAgentCleansUpWhenTheKeeperIsKilled) {
  LauncherInTest keeper(keeper_of(
      shell_job(1, waiting_script("trap '' TERM HUP; setsid sleep 1000 & echo child $!"))));
  keeper.read_until("is ready");
  keeper.send(SIGKILL);
  EXPECT_EQ(keeper.end(), 128 + SIGKILL);
  EXPECT_TRUE(is_gone(keeper.number_after("worker ")));
  EXPECT_TRUE(is_gone(keeper.number_after("child ")));
}

}  // namespace
}  // namespace farandole
