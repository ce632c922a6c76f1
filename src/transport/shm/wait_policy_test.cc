#include "transport/shm/wait_policy.h"

#include <gtest/gtest.h>

#include <chrono>

namespace farandole {
namespace {

using Action = WaitPolicy::Action;
using std::chrono::microseconds;
using std::chrono::milliseconds;

struct Counts {
  int polls = 0;
  int yields = 0;
};

// One wait until the policy says sleep; a poll takes 1 µs, a yield `yield`.
Counts one_wait(WaitPolicy& policy, TimePoint& now, Duration yield = microseconds(3)) {
  Counts counts;
  policy.begin_wait(now);
  for (;;) {
    switch (policy.next(now)) {
      case Action::kPoll:
        ++counts.polls;
        now += microseconds(1);
        break;
      case Action::kYield:
        ++counts.yields;
        now += yield;
        break;
      case Action::kSleep:
        now += milliseconds(1);
        return counts;
    }
  }
}

int waits_without_yield(WaitPolicy& policy, TimePoint& now) {
  int waits = 0;
  while (one_wait(policy, now).yields == 0) ++waits;
  return waits;
}

TEST(WaitPolicy, SpinsWhenEveryRankHasACore) {
  WaitPolicy policy(2, 2);
  TimePoint now{};
  const auto counts = one_wait(policy, now);
  EXPECT_EQ(counts.polls, 100);
  EXPECT_EQ(counts.yields, 0);
}

TEST(WaitPolicy, SpinsAgainAfterASleep) {
  WaitPolicy policy(1, 2);
  TimePoint now{};
  one_wait(policy, now);
  EXPECT_EQ(policy.next(now), Action::kPoll);
}

TEST(WaitPolicy, PollsThenYieldsThenSleepsWhenCoresAreShared) {
  WaitPolicy policy(4, 2);
  TimePoint now{};
  for (int wait = 0; wait < 3; ++wait) {
    const auto counts = one_wait(policy, now);
    EXPECT_EQ(counts.polls, WaitPolicy::kPolls);
    EXPECT_EQ(counts.yields, WaitPolicy::kYields);
  }
}

TEST(WaitPolicy, OneLongYieldEndsYieldingForAWhile) {
  WaitPolicy policy(4, 2);
  TimePoint now{};
  EXPECT_EQ(one_wait(policy, now, milliseconds(3)).yields, 1);
  EXPECT_EQ(waits_without_yield(policy, now), WaitPolicy::kSkippedWaitsMin);
}

TEST(WaitPolicy, AWaitThatEndsDuringALongYieldCountsToo) {
  WaitPolicy policy(4, 2);
  TimePoint now{};
  policy.begin_wait(now);
  while (policy.next(now) != Action::kYield) now += microseconds(1);
  now += milliseconds(3);  // and then the caller found what it waited for
  EXPECT_EQ(waits_without_yield(policy, now), WaitPolicy::kSkippedWaitsMin);
}

TEST(WaitPolicy, TheBreakDoublesUpToACapAndShrinksWhenYieldsAreShort) {
  WaitPolicy policy(4, 2);
  TimePoint now{};
  int skipped = 0;
  for (int expected = 16; expected <= 4096; expected *= 2) {
    ASSERT_EQ(one_wait(policy, now, milliseconds(3)).yields, 1);
    skipped = 0;
    while (skipped < expected && one_wait(policy, now, milliseconds(3)).yields == 0) ++skipped;
    EXPECT_EQ(skipped, expected);
  }
  ASSERT_EQ(one_wait(policy, now, milliseconds(3)).yields, 1);
  EXPECT_EQ(waits_without_yield(policy, now), 4096);
  for (int wait = 0; wait < 10; ++wait) one_wait(policy, now);  // short yields
  ASSERT_EQ(one_wait(policy, now, milliseconds(3)).yields, 1);
  EXPECT_LT(waits_without_yield(policy, now), 64);
}

}  // namespace
}  // namespace farandole
