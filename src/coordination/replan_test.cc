#include "coordination/replan.h"

#include <gmock/gmock.h>

#include <vector>

namespace farandole {
namespace {

Report report(std::uint32_t completed, std::uint8_t entered, std::uint64_t identity,
              std::uint32_t quiescent_points = 0) {
  return {.generation = 1,
          .completed = completed,
          .entered = entered,
          .identity = identity,
          .quiescent_points = quiescent_points,
          .fragments_run = 0};
}

TEST(Replan, KnowsItsReasonAndWhichMembersHaveReported) {
  Replan replan({3, 5}, {.generation = 1, .fragment = 4});
  EXPECT_EQ(replan.raise().fragment, 4U);
  EXPECT_FALSE(replan.any_has_reported(MemberSet(1)));
  ASSERT_EQ(replan.add(MemberSet(1), report(2, 0, 0, 8)), Status());
  EXPECT_TRUE(replan.any_has_reported(MemberSet(1)));
  EXPECT_FALSE(replan.is_complete());
  ASSERT_EQ(replan.add(MemberSet(0), report(2, 0, 0, 9)), Status());
  EXPECT_TRUE(replan.is_complete());
  EXPECT_THAT(replan.quiescent_points(), testing::ElementsAre(9, 8));
}

TEST(Replan, RollsBackStepsThatNotAllHaveEntered) {
  const struct {
    std::vector<Report> reports;
    std::uint32_t common_prefix;
    bool rolls_back;
  } cases[] = {
      {{report(4, 0, 0), report(4, 0, 0)}, 4, false}, {{report(4, 1, 7), report(4, 0, 0)}, 4, true},
      {{report(4, 1, 7), report(4, 1, 7)}, 5, false}, {{report(4, 1, 7), report(4, 1, 8)}, 4, true},
      {{report(4, 1, 7), report(5, 0, 0)}, 5, false}, {{report(5, 1, 7), report(4, 1, 6)}, 5, true},
  };
  for (const auto& [reports, common_prefix, rolls_back] : cases) {
    Replan replan({0, 1}, {});
    for (int member = 0; member < 2; ++member)
      ASSERT_EQ(replan.add(MemberSet(member), reports[static_cast<std::size_t>(member)]), Status());
    EXPECT_EQ(replan.common_prefix(), common_prefix);
    EXPECT_EQ(replan.rolls_back(), rolls_back);
  }
}

}  // namespace
}  // namespace farandole
