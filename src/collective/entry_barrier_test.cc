#include "collective/entry_barrier.h"

#include <gtest/gtest.h>

#include <array>

#include "collective/group_in_test.h"

namespace farandole {
namespace {

TEST(EntryBarrier, is_done_when_all_have_entered_and_gives_their_counts) {
  GroupInTest group(3);
  std::vector<EntryBarrier> entry_barriers;
  for (int member = 0; member < 3; ++member)
    entry_barriers.emplace_back(group.group(member), step_identity(1));
  for (int member = 0; member < 3; ++member) {
    EXPECT_EQ(
        entry_barriers[0].has_entered() ? entry_barriers[0].check_arrivals() : Progress::kPending,
        Progress::kPending);
    entry_barriers[static_cast<std::size_t>(member)].enter(member * 10);
  }
  for (EntryBarrier& entry_barrier : entry_barriers) {
    ASSERT_EQ(entry_barrier.check_arrivals(), Progress::kDone);
    for (int member = 0; member < 3; ++member) {
      EXPECT_EQ(entry_barrier.declared_count(member), member * 10);
      EXPECT_EQ(entry_barrier.staging(member),
                entry_barriers[static_cast<std::size_t>(member)].own_staging());
    }
    EXPECT_FALSE(entry_barrier.declared_counts_equal());
  }
}

TEST(EntryBarrier, every_slot_has_its_own_staging_memory) {
  GroupInTest group(1);
  const std::byte* begin = group.group(0).stagings[0];
  const std::byte* first = EntryBarrier(group.group(0), step_identity(4)).own_staging();
  const std::byte* second = EntryBarrier(group.group(0), step_identity(5)).own_staging();
  const std::byte* third = EntryBarrier(group.group(0), step_identity(6)).own_staging();
  EXPECT_EQ(first, begin);
  EXPECT_EQ(second, begin + kStagingBytesPerSlot);
  EXPECT_EQ(third, first);
}

TEST(EntryBarrier, exposes_only_memory_in_heaps) {
  GroupInTest group(2);
  const auto block = group.heap(1).allocate(1000).value();
  std::array<std::byte, 1000> private_memory{};
  EntryBarrier exposer(group.group(1), step_identity(1));
  EntryBarrier observer(group.group(0), step_identity(1));
  exposer.enter_exposing(0, {block.get(), 1000}, private_memory);
  observer.enter_exposing(0, private_memory, {});
  ASSERT_EQ(observer.check_arrivals(), Progress::kDone);
  block.get()[3] = std::byte{42};
  ASSERT_NE(observer.input(1, 1000), nullptr);
  EXPECT_EQ(observer.input(1, 1000)[3], std::byte{42});
  EXPECT_EQ(observer.output(1, 1000), nullptr);
  EXPECT_EQ(exposer.input(0, 1000), nullptr);
  EXPECT_TRUE(observer.exposes_input(1) && !observer.exposes_input(0) &&
              observer.any_member_exposes_input());
}

TEST(EntryBarrier, memory_outside_of_the_heap_is_not_accessible) {
  GroupInTest group(2);
  EntryBarrier valid(group.group(0), step_identity(1));
  EntryBarrier invalid(group.group(1), step_identity(1));
  valid.enter(0);
  invalid.enter(0, GroupInTest::kHeapBytes - 1, kNoLocation - 1);
  ASSERT_EQ(valid.check_arrivals(), Progress::kDone);
  EXPECT_NE(valid.input(1, 1), nullptr);
  EXPECT_EQ(valid.input(1, 2), nullptr);
  EXPECT_EQ(valid.output(1, 1), nullptr);
}

TEST(EntryBarrier, a_negative_declared_count_is_a_mismatch_for_all) {
  GroupInTest group(2);
  EntryBarrier valid(group.group(0), step_identity(1));
  EntryBarrier invalid(group.group(1), step_identity(1));
  valid.enter(0);
  invalid.enter(-1);
  EXPECT_EQ(valid.check_arrivals(), Progress::kMismatch);
  EXPECT_EQ(invalid.check_arrivals(), Progress::kMismatch);
}

TEST(EntryBarrierDeathTest, entering_twice_aborts) {
  GroupInTest group(1);
  EntryBarrier entry_barrier(group.group(0), step_identity(1));
  entry_barrier.enter(0);
  EXPECT_DEATH(entry_barrier.enter(0), "a step is entered once");
}

}  // namespace
}  // namespace farandole
