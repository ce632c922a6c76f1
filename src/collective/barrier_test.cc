#include "collective/barrier.h"

#include <gtest/gtest.h>

#include <atomic>

#include "collective/group_in_test.h"

namespace farandole {
namespace {

TEST(Barrier, no_member_passes_before_all_have_entered) {
  for (const int members : {1, 2, 3, 8}) {
    GroupInTest group(members);
    std::atomic<int> arrivals = 0;
    group.run_in_threads([&](int member) {
      for (int round = 1; round <= 50; ++round) {
        ++arrivals;
        CollectiveStep step =
            Barrier(group.group(member), step_identity(static_cast<std::uint32_t>(round)));
        ASSERT_EQ(group.finish(member, step), Progress::kDone);
        EXPECT_GE(arrivals, round * members);
      }
    });
  }
}

// A member is never more than one step ahead of the slowest member, so two slots are enough.
TEST(Barrier, no_member_is_two_steps_ahead) {
  GroupInTest group(2);
  std::vector<Barrier> slow_barriers;
  std::vector<Barrier> fast_barriers;
  for (std::uint32_t sequence = 1; sequence <= 3; ++sequence) {
    slow_barriers.emplace_back(group.group(0), step_identity(sequence));
    fast_barriers.emplace_back(group.group(1), step_identity(sequence));
  }
  EXPECT_EQ(slow_barriers[0].advance(), Progress::kPending);
  EXPECT_EQ(fast_barriers[0].advance(), Progress::kDone);
  EXPECT_EQ(fast_barriers[1].advance(), Progress::kPending);
  EXPECT_EQ(slow_barriers[0].advance(), Progress::kDone);
  EXPECT_EQ(slow_barriers[1].advance(), Progress::kDone);
  EXPECT_EQ(slow_barriers[2].advance(), Progress::kPending);
  EXPECT_EQ(fast_barriers[1].advance(), Progress::kDone);
  EXPECT_EQ(fast_barriers[2].advance(), Progress::kDone);
  EXPECT_EQ(slow_barriers[2].advance(), Progress::kDone);
}

}  // namespace
}  // namespace farandole
