#include "collective/entrance.h"

#include <gtest/gtest.h>

#include <array>

#include "collective/group_in_test.h"

namespace farandole {
namespace {

TEST(Entrance, meets_when_the_last_has_entered_and_shows_what_they_said) {
  GroupInTest group(3);
  std::vector<Entrance> entrances;
  for (int member = 0; member < 3; ++member)
    entrances.emplace_back(group.group(member), step_number(1));
  for (int member = 0; member < 3; ++member) {
    EXPECT_EQ(entrances[0].entered() ? entrances[0].meet() : Progress::kPending,
              Progress::kPending);
    entrances[static_cast<std::size_t>(member)].enter(member * 10);
  }
  for (Entrance& entrance : entrances) {
    ASSERT_EQ(entrance.meet(), Progress::kDone);
    for (int member = 0; member < 3; ++member) {
      EXPECT_EQ(entrance.extent(member), member * 10);
      EXPECT_EQ(entrance.staging(member),
                entrances[static_cast<std::size_t>(member)].own_staging());
    }
    EXPECT_FALSE(entrance.extents_equal());
  }
}

TEST(Entrance, every_slot_has_its_own_staging_memory) {
  GroupInTest group(1);
  const std::byte* begin = group.group(0).stagings[0];
  const std::byte* first = Entrance(group.group(0), step_number(4)).own_staging();
  const std::byte* second = Entrance(group.group(0), step_number(5)).own_staging();
  const std::byte* third = Entrance(group.group(0), step_number(6)).own_staging();
  EXPECT_EQ(first, begin);
  EXPECT_EQ(second, begin + kStagingBytesPerSlot);
  EXPECT_EQ(third, first);
}

TEST(Entrance, shows_to_all_what_lies_in_heaps_and_nothing_else) {
  GroupInTest group(2);
  const auto block = group.heap(1).allocate(1000).value();
  std::array<std::byte, 1000> ordinary{};
  Entrance lends(group.group(1), step_number(1));
  Entrance other(group.group(0), step_number(1));
  lends.enter_lending(0, {block.get(), 1000}, ordinary);
  other.enter_lending(0, ordinary, {});
  ASSERT_EQ(other.meet(), Progress::kDone);
  block.get()[3] = std::byte{42};
  ASSERT_NE(other.input(1, 1000), nullptr);
  EXPECT_EQ(other.input(1, 1000)[3], std::byte{42});
  EXPECT_EQ(other.output(1, 1000), nullptr);
  EXPECT_EQ(lends.input(0, 1000), nullptr);
  EXPECT_TRUE(other.lends_input(1) && !other.lends_input(0) && other.somebody_lends_input());
}

TEST(Entrance, memory_that_is_said_to_lie_outside_of_the_heap_is_not_seen) {
  GroupInTest group(2);
  Entrance honest(group.group(0), step_number(1));
  Entrance wrong(group.group(1), step_number(1));
  honest.enter(0);
  wrong.enter(0, GroupInTest::kHeapBytes - 1, kNowhere - 1);
  ASSERT_EQ(honest.meet(), Progress::kDone);
  EXPECT_NE(honest.input(1, 1), nullptr);
  EXPECT_EQ(honest.input(1, 2), nullptr);
  EXPECT_EQ(honest.output(1, 1), nullptr);
}

TEST(Entrance, a_negative_extent_is_a_mismatch_for_all) {
  GroupInTest group(2);
  Entrance honest(group.group(0), step_number(1));
  Entrance wrong(group.group(1), step_number(1));
  honest.enter(0);
  wrong.enter(-1);
  EXPECT_EQ(honest.meet(), Progress::kMismatch);
  EXPECT_EQ(wrong.meet(), Progress::kMismatch);
}

TEST(EntranceDeathTest, entering_twice_is_a_bug) {
  GroupInTest group(1);
  Entrance entrance(group.group(0), step_number(1));
  entrance.enter(0);
  EXPECT_DEATH(entrance.enter(0), "a step is entered once");
}

}  // namespace
}  // namespace farandole
