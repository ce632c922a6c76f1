#include "base/time_slice.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace farandole {
namespace {

TEST(TimeSlice, BecomesTheShortestForTheCallingThreadOnly) {
  const std::uint64_t before = time_slice_ns();
  if (before == 0) GTEST_SKIP() << "this kernel has no time slices of threads (Linux 6.12 has)";
  std::thread([] {
    for (int time = 0; time < 2; ++time) {
      take_short_time_slices();
      EXPECT_EQ(time_slice_ns(), kShortestTimeSliceNs);
    }
  }).join();
  EXPECT_EQ(time_slice_ns(), before);
}

TEST(TimeSlice, OfAnotherPolicyIsLeftAlone) {
  std::thread([] {
    const sched_param none{};
    ASSERT_EQ(::sched_setscheduler(0, SCHED_IDLE, &none), 0);
    take_short_time_slices();
    EXPECT_EQ(::sched_getscheduler(0), SCHED_IDLE);
    EXPECT_EQ(time_slice_ns(), 0U);
  }).join();
}

}  // namespace
}  // namespace farandole
