#include "collective/entrance.h"

#include <gtest/gtest.h>

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
    ASSERT_TRUE(entrances[static_cast<std::size_t>(member)].may_enter());
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
  const std::byte* begin = group.group(0).staging;
  const std::byte* first = Entrance(group.group(0), step_number(4)).own_staging();
  const std::byte* second = Entrance(group.group(0), step_number(5)).own_staging();
  const std::byte* third = Entrance(group.group(0), step_number(6)).own_staging();
  EXPECT_EQ(first, begin);
  EXPECT_EQ(second, begin + kStagingBytesPerSlot);
  EXPECT_EQ(third, first);
}

TEST(Entrance, a_location_outside_of_the_heap_is_a_mismatch_for_all) {
  GroupInTest group(2);
  group.group(1).staging_location = kFirstSegmentBytes - 1;
  Entrance honest(group.group(0), step_number(1));
  Entrance wrong(group.group(1), step_number(1));
  honest.enter(0);
  wrong.enter(0);
  EXPECT_EQ(honest.meet(), Progress::kMismatch);
  EXPECT_EQ(wrong.meet(), Progress::kMismatch);
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
