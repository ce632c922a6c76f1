// Each test runs one order of events; tests/model runs all orders.
#include "engine/progress_lock.h"

#include <gtest/gtest.h>

namespace farandole {
namespace {

using Wake = ProgressLock::Wake;
constexpr bool kWork = true;
constexpr bool kNoWork = false;

TEST(ProgressLock, ACallerTakesItAndTheLastWaiterWakesTheProgressThread) {
  ProgressLock lock;
  lock.arrive(true);
  EXPECT_TRUE(lock.try_take());
  lock.arrive(true);
  EXPECT_FALSE(lock.try_take());
  EXPECT_EQ(lock.wake_after_finished_calls(true), Wake::kCallers);
  EXPECT_EQ(lock.release_as_waiter(), Wake::kNoThread);
  EXPECT_EQ(lock.end_wait(kWork), Wake::kCallers);
  EXPECT_TRUE(lock.try_take());
  EXPECT_EQ(lock.wake_after_finished_calls(true), Wake::kNoThread);
  EXPECT_EQ(lock.release_as_waiter(), Wake::kNoThread);
  EXPECT_EQ(lock.end_wait(kWork), Wake::kProgress);
}

TEST(ProgressLock, WithoutWorkNoThreadIsWoken) {
  ProgressLock lock;
  lock.arrive(false);
  ASSERT_TRUE(lock.try_take());
  EXPECT_EQ(lock.release(kNoWork), Wake::kNoThread);
  EXPECT_FALSE(lock.may_be_taken_in_background(kNoWork));
  EXPECT_TRUE(lock.may_be_taken_in_background(kWork));
}

TEST(ProgressLock, AClaimGoesBeforeCallers) {
  ProgressLock lock;
  lock.arrive(true);
  ASSERT_TRUE(lock.try_take());
  EXPECT_FALSE(lock.holder_must_release(kWork));
  EXPECT_TRUE(lock.begin_claim());
  EXPECT_TRUE(lock.holder_must_release(kWork));
  EXPECT_FALSE(lock.can_be_claimed());
  EXPECT_EQ(lock.release_as_waiter(), Wake::kCallers);
  EXPECT_FALSE(lock.try_take());
  ASSERT_TRUE(lock.can_be_claimed());
  lock.take_claimed();
  EXPECT_EQ(lock.release(kWork), Wake::kCallers);
  EXPECT_TRUE(lock.try_take());
}

TEST(ProgressLock, TheProgressThreadNapsWhileCallsComeAndIsNotWoken) {
  ProgressLock lock;
  lock.begin_nap();
  lock.arrive(false);
  ASSERT_TRUE(lock.try_take());
  EXPECT_EQ(lock.release(kWork), Wake::kNoThread);
  EXPECT_TRUE(lock.continue_nap(kWork));
  EXPECT_FALSE(lock.continue_nap(kWork));
  EXPECT_TRUE(lock.end_nap(kWork));
  EXPECT_TRUE(lock.is_held_in_background());
  EXPECT_FALSE(lock.holder_must_release(kWork));
  EXPECT_TRUE(lock.holder_must_release(kNoWork));
  lock.arrive(false);
  EXPECT_TRUE(lock.holder_must_release(kWork));
  EXPECT_EQ(lock.release(kWork), Wake::kProgress);
  EXPECT_FALSE(lock.is_held_in_background());
}

TEST(ProgressLock, TheProgressThreadReleasesItForAWaiter) {
  ProgressLock lock;
  lock.begin_nap();
  ASSERT_TRUE(lock.end_nap(kWork));
  lock.arrive(true);
  EXPECT_TRUE(lock.holder_must_release(kWork));
  EXPECT_EQ(lock.release(kWork), Wake::kCallers);
  lock.begin_nap();
  EXPECT_FALSE(lock.end_nap(kWork));
}

TEST(ProgressLock, WorkWithoutACallerWakesAThread) {
  ProgressLock lock;
  EXPECT_EQ(lock.wake_for_new_work(), Wake::kProgress);
  lock.arrive(true);
  EXPECT_EQ(lock.wake_for_new_work(), Wake::kCallers);
  ASSERT_TRUE(lock.try_take());
  EXPECT_EQ(lock.wake_for_new_work(), Wake::kNoThread) << "the holder's bell rings";
  EXPECT_EQ(lock.release_as_waiter(), Wake::kNoThread);
  EXPECT_EQ(lock.end_wait(kWork), Wake::kProgress);
}

TEST(ProgressLock, AfterStopOnlyAClaimTakesIt) {
  ProgressLock lock;
  lock.arrive(true);
  ASSERT_TRUE(lock.try_take());
  EXPECT_TRUE(lock.stop());
  EXPECT_FALSE(lock.stop());
  EXPECT_TRUE(lock.holder_must_release(kWork));
  EXPECT_EQ(lock.release_as_waiter(), Wake::kCallers);
  EXPECT_FALSE(lock.try_take());
  EXPECT_FALSE(lock.may_be_taken_in_background(kWork));
  EXPECT_FALSE(lock.begin_claim());
  lock.take_claimed();
  EXPECT_EQ(lock.wake_after_finished_calls(false), Wake::kCallers);
  EXPECT_EQ(lock.release(kNoWork), Wake::kCallers);
  EXPECT_EQ(lock.end_wait(kNoWork), Wake::kCallers);
}

TEST(ProgressLockDeathTest, MisuseAborts) {
  ProgressLock lock;
  EXPECT_DEATH((void)lock.release(kWork), "only the holder releases the progress lock");
  EXPECT_DEATH((void)lock.end_wait(kWork), "each waiter ends its wait once");
  lock.arrive(false);
  ASSERT_TRUE(lock.try_take());
  EXPECT_DEATH(lock.take_claimed(), "one thread at a time");
}

}  // namespace
}  // namespace farandole
