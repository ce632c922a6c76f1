#include "launcher/foreground_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/launcher_in_test.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::function<int()> foreground_process_of(const JobOptions& options) {
  return [options] { return run_job(options); };
}

TEST(ForegroundProcess, ReturnsTheExitCodeOfTheJob) {
  LauncherInTest foreground_process(foreground_process_of(shell_job(2, "exit 7")));
  EXPECT_EQ(foreground_process.wait_for_end(), 7);
  EXPECT_THAT(foreground_process.output(), HasSubstr("exited with code 7"));
}

TEST(ForegroundProcess, AMissingProgramStartsNoJob) {
  JobOptions options = shell_job(2, "");
  options.command = {"farandole-no-such-program"};
  LauncherInTest foreground_process(foreground_process_of(options));
  EXPECT_EQ(foreground_process.wait_for_end(), 127);
  EXPECT_EQ(foreground_process.output(),
            "farandole: command not found: `farandole-no-such-program`\n");
}

TEST(ForegroundProcess, ForwardsSignals) {
  LauncherInTest foreground_process(
      foreground_process_of(shell_job(1, waiting_script("trap 'exit 5' USR1"))));
  foreground_process.read_until("is ready");
  foreground_process.send_signal(SIGUSR1);
  EXPECT_EQ(foreground_process.wait_for_end(), 5);
}

TEST(ForegroundProcess, ForwardsTheSignalThatEndsTheJob) {
  LauncherInTest foreground_process(
      foreground_process_of(shell_job(1, waiting_script("trap 'echo bye; exit 0' TERM"))));
  foreground_process.read_until("is ready");
  foreground_process.send_signal(SIGTERM);
  EXPECT_EQ(foreground_process.wait_for_end(), 128 + SIGTERM);
  EXPECT_THAT(foreground_process.output(), HasSubstr("[0] bye\n"));
}

// SIGHUP is ignored, as under nohup. The foreground process handles pending signals in the order of
// their numbers. So if it did not ignore SIGHUP, it would handle SIGHUP before SIGUSR1.
TEST(ForegroundProcess, AnIgnoredSignalStaysIgnored) {
  const JobOptions options = shell_job(1, waiting_script("trap 'exit 5' USR1"));
  LauncherInTest foreground_process([&options] {
    ::signal(SIGHUP, SIG_IGN);
    return run_job(options);
  });
  foreground_process.read_until("is ready");
  foreground_process.send_signal(SIGHUP);
  foreground_process.send_signal(SIGUSR1);
  EXPECT_EQ(foreground_process.wait_for_end(), 5);
  EXPECT_THAT(foreground_process.output(), Not(HasSubstr("SIGHUP")));
}

TEST(ForegroundProcess, EndsWithItsParent) {
  JobOptions options = shell_job(1, waiting_script("trap 'echo bye; exit 0' TERM"));
  options.ends_with_parent = true;
  LauncherInTest parent([&options] {
    if (::fork() == 0) ::_exit(run_job(options));
    ::pause();
    return 0;
  });
  parent.read_until("is ready");
  parent.send_signal(SIGKILL);
  EXPECT_EQ(parent.wait_for_end(), 128 + SIGKILL);
  EXPECT_THAT(parent.output(), HasSubstr("the process that has started this launcher has ended"));
  EXPECT_THAT(parent.output(), HasSubstr("[0] bye\n"));
}

// A job outlives the shell that has started it.
TEST(ForegroundProcess, OutlivesItsParentByDefault) {
  LauncherInTest parent([] {
    if (::fork() == 0) ::_exit(run_job(shell_job(1, waiting_script("trap 'exit 0' USR1"))));
    ::pause();
    return 0;
  });
  parent.read_until("is ready");
  parent.send_signal(SIGKILL);
  const pid_t worker = parent.number_after("worker ");
  ::kill(worker, SIGUSR1);
  EXPECT_EQ(parent.wait_for_end(), 128 + SIGKILL);
  EXPECT_THAT(parent.output(), Not(HasSubstr("SIGTERM")));
}

TEST(ForegroundProcess, StopsAndContinuesTogetherWithItsJob) {
  const JobOptions options = shell_job(1, waiting_script("trap 'exit 5' USR1"));
  LauncherInTest foreground_process([&options] {
    ::setpgid(0, 0);  // as if a shell with job control had started it
    return run_job(options);
  });
  foreground_process.read_until("is ready");
  foreground_process.send_signal(SIGTSTP);
  int status = 0;
  ASSERT_EQ(::waitpid(foreground_process.pid(), &status, WUNTRACED), foreground_process.pid());
  ASSERT_TRUE(WIFSTOPPED(status));
  foreground_process.send_signal(SIGCONT);
  foreground_process.send_signal(SIGUSR1);
  EXPECT_EQ(foreground_process.wait_for_end(), 5);
}

// The foreground process runs in a session of its own, as under `ssh -t` or `docker exec`.
TEST(ForegroundProcess, CtrlZDoesNotStopAJobThatNoShellCouldContinue) {
  const JobOptions options = shell_job(1, waiting_script("trap 'exit 5' CONT"));
  LauncherInTest foreground_process([&options] {
    ::setsid();
    return run_job(options);
  });
  foreground_process.read_until("is ready");
  foreground_process.send_signal(SIGTSTP);
  EXPECT_EQ(foreground_process.wait_for_end(), 5);
}

TEST(ForegroundProcess, CleansUpWhenTheAgentIsKilled) {
  // When the agent dies, the kernel kills the workers, but not the child that this worker starts.
  LauncherInTest foreground_process(
      foreground_process_of(shell_job(1, waiting_script("setsid sleep 1000 & echo child $!"))));
  foreground_process.read_until("is ready");
  const pid_t agent = foreground_process.number_after(" of ");
  ::kill(agent, SIGKILL);
  EXPECT_EQ(foreground_process.wait_for_end(), 128 + SIGKILL);
  EXPECT_THAT(foreground_process.output(),
              HasSubstr("the launcher's agent (pid " + std::to_string(agent) +
                        ") was killed by signal 9 (SIGKILL); the job has ended"));
  EXPECT_TRUE(is_gone(foreground_process.number_after("worker ")));
  EXPECT_TRUE(is_gone(foreground_process.number_after("child ")));
}

// When the agent is killed, the kernel also kills the worker, because this worker is a script that
// does not use our library. The worker's child survives.
TEST(ForegroundProcess, WaitsForProcessesOfAnElasticJobWhenTheAgentIsKilled) {
  JobOptions options = shell_job(1, waiting_script("setsid sleep 1000 & echo child $!"));
  options.elastic.emplace();
  LauncherInTest foreground_process(foreground_process_of(options));
  foreground_process.read_until("is ready");
  ::kill(foreground_process.number_after(" of "), SIGKILL);
  foreground_process.read_until("its workers end after their next commit");
  const pid_t child = foreground_process.number_after("child ");
  EXPECT_FALSE(is_gone(child));
  foreground_process.send_signal(SIGTERM);  // ends the wait for the child
  EXPECT_EQ(foreground_process.wait_for_end(), 128 + SIGKILL);
  EXPECT_TRUE(is_gone(child));
}

TEST(ForegroundProcess, TheAgentCleansUpWhenTheForegroundProcessIsKilled) {
  LauncherInTest foreground_process(foreground_process_of(
      shell_job(1, waiting_script("trap '' TERM HUP; setsid sleep 1000 & echo child $!"))));
  foreground_process.read_until("is ready");
  foreground_process.send_signal(SIGKILL);
  EXPECT_EQ(foreground_process.wait_for_end(), 128 + SIGKILL);
  EXPECT_TRUE(is_gone(foreground_process.number_after("worker ")));
  EXPECT_TRUE(is_gone(foreground_process.number_after("child ")));
}

}  // namespace
}  // namespace farandole
