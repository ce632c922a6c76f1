#include "transport/shm/wait_policy.h"

#include <gtest/gtest.h>

#include <chrono>

namespace farandole {
namespace {

using Action = WaitPolicy::Action;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

struct Counts {
  int checks = 0;
  int polls = 0;
  int yields = 0;
};

// Runs one wait until the policy returns kSleep. On the simulated clock, a check of the flags takes
// 10 ns, a poll takes 1 µs, and a yield takes `yield`.
Counts run_wait(WaitPolicy& policy, SimulatedClock& clock, Duration yield = microseconds(3)) {
  Counts counts;
  policy.begin_wait(clock);
  for (;;) {
    switch (policy.next_action(clock)) {
      case Action::kCheck:
        ++counts.checks;
        clock.advance(std::chrono::nanoseconds(10));
        break;
      case Action::kPoll:
        ++counts.polls;
        clock.advance(microseconds(1));
        break;
      case Action::kYield:
        ++counts.yields;
        clock.advance(yield);
        break;
      case Action::kSleep:
        clock.advance(milliseconds(1));
        return counts;
    }
  }
}

int count_waits_until_yield(WaitPolicy& policy, SimulatedClock& clock) {
  int waits = 0;
  while (run_wait(policy, clock).yields == 0) ++waits;
  return waits;
}

// In this test, yields take no time, so the checks and polls fill the 100 µs before the sleep.
TEST(WaitPolicy, SpinsAndSometimesYieldsWhenEveryRankHasACore) {
  WaitPolicy policy(2, 2);
  SimulatedClock clock;
  for (int wait = 0; wait < 3; ++wait) {
    const auto counts = run_wait(policy, clock, {});
    EXPECT_EQ(counts.checks, WaitPolicy::kChecksBeforePause);
    EXPECT_GE(counts.polls, 100 - WaitPolicy::kPollsPerClockRead);
    EXPECT_LE(counts.polls, WaitPolicy::kPollsPerClockRead * (WaitPolicy::kYieldsBeforeSleep + 2));
    EXPECT_EQ(counts.yields, WaitPolicy::kYieldsBeforeSleep);
  }
}

TEST(WaitPolicy, DoesNotYieldInAShortWait) {
  WaitPolicy policy(2, 2);
  SimulatedClock clock;
  policy.begin_wait(clock);
  // The clock is read at 2 µs, 6 µs and 10 µs.
  for (; clock.now().time_since_epoch() < microseconds(10); clock.advance(nanoseconds(500)))
    EXPECT_EQ(policy.next_action(clock), Action::kCheck);
  EXPECT_EQ(policy.next_action(clock), Action::kYield);
}

// If a check includes several sockets, it takes microseconds. Then 64 checks without a yield would
// block other ranks on this core for too long.
TEST(WaitPolicy, YieldsDuringSlowChecks) {
  WaitPolicy policy(2, 2);
  SimulatedClock clock;
  policy.begin_wait(clock);
  int checks = 0;
  for (; policy.next_action(clock) != Action::kYield; ++checks) clock.advance(microseconds(2));
  EXPECT_EQ(checks, WaitPolicy::kPollsBeforeClockRead + WaitPolicy::kPollsPerClockRead);
}

TEST(WaitPolicy, OneLongYieldEndsTheYieldsOfARankWithItsOwnCoreForLong) {
  WaitPolicy policy(2, 2);
  SimulatedClock clock;
  const auto counts = run_wait(policy, clock, milliseconds(3));
  EXPECT_EQ(counts.yields, 1);
  EXPECT_EQ(count_waits_until_yield(policy, clock), WaitPolicy::kSkippedWaitsMax);
}

TEST(WaitPolicy, SpinsAgainAfterASleep) {
  WaitPolicy policy(1, 2);
  SimulatedClock clock;
  run_wait(policy, clock);
  EXPECT_EQ(policy.next_action(clock), Action::kCheck);
}

TEST(WaitPolicy, PollsThenYieldsThenSleepsWhenCoresAreShared) {
  WaitPolicy policy(4, 2);
  SimulatedClock clock;
  for (int wait = 0; wait < 3; ++wait) {
    const auto counts = run_wait(policy, clock);
    EXPECT_EQ(counts.checks, 0);
    EXPECT_EQ(counts.polls, WaitPolicy::kPollsBeforeYield);
    EXPECT_EQ(counts.yields, WaitPolicy::kYieldsBeforeSleep);
  }
}

TEST(WaitPolicy, WaitAwakeFollowsThePolicyUntilItSleeps) {
  WaitPolicy policy(4, 2);
  SimulatedClock clock;
  policy.begin_wait(clock);
  for (int i = 0; i < WaitPolicy::kPollsBeforeYield + WaitPolicy::kYieldsBeforeSleep; ++i)
    EXPECT_TRUE(wait_awake(policy, clock));
  EXPECT_FALSE(wait_awake(policy, clock));
}

TEST(WaitPolicy, OneLongYieldEndsYieldingForAWhile) {
  WaitPolicy policy(4, 2);
  SimulatedClock clock;
  EXPECT_EQ(run_wait(policy, clock, milliseconds(3)).yields, 1);
  EXPECT_EQ(count_waits_until_yield(policy, clock), WaitPolicy::kSkippedWaitsMin);
}

TEST(WaitPolicy, YieldsToWorkingRanksDoNotEndYielding) {
  WaitPolicy policy(8, 2);
  SimulatedClock clock;
  for (int wait = 0; wait < 3; ++wait)
    EXPECT_EQ(run_wait(policy, clock, microseconds(400)).yields, WaitPolicy::kYieldsBeforeSleep);
}

TEST(WaitPolicy, ALongYieldCountsAlsoIfTheWaitEndsDuringIt) {
  WaitPolicy policy(4, 2);
  SimulatedClock clock;
  policy.begin_wait(clock);
  while (policy.next_action(clock) != Action::kYield) clock.advance(microseconds(1));
  clock.advance(milliseconds(3));  // the wait ends during this yield
  EXPECT_EQ(count_waits_until_yield(policy, clock), WaitPolicy::kSkippedWaitsMin);
}

TEST(WaitPolicy, SkippedWaitsDoubleUpToALimitAndShrinkAfterShortYields) {
  WaitPolicy policy(4, 2);
  SimulatedClock clock;
  int skipped_waits = 0;
  for (int expected_waits = 16; expected_waits <= 4096; expected_waits *= 2) {
    ASSERT_EQ(run_wait(policy, clock, milliseconds(3)).yields, 1);
    skipped_waits = 0;
    while (skipped_waits < expected_waits && run_wait(policy, clock, milliseconds(3)).yields == 0)
      ++skipped_waits;
    EXPECT_EQ(skipped_waits, expected_waits);
  }
  ASSERT_EQ(run_wait(policy, clock, milliseconds(3)).yields, 1);
  EXPECT_EQ(count_waits_until_yield(policy, clock), 4096);
  for (int wait = 0; wait < 10; ++wait) run_wait(policy, clock);  // short yields
  ASSERT_EQ(run_wait(policy, clock, milliseconds(3)).yields, 1);
  EXPECT_LT(count_waits_until_yield(policy, clock), 64);
}

}  // namespace
}  // namespace farandole
