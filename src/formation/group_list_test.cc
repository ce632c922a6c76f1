#include "formation/group_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace farandole {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(GroupList, BeginsWithTheWorld) {
  EXPECT_THAT(all_groups({{1}, {0, 2}}, 3).value(),
              ElementsAre(ElementsAre(0, 1, 2), ElementsAre(1), ElementsAre(0, 2)));
}

TEST(GroupList, RejectsInvalidGroups) {
  for (const std::vector<int>& ranks : {std::vector<int>{}, {1, 0}, {1, 1}, {-1}, {3}, {0, 1, 2}})
    EXPECT_EQ(all_groups({ranks}, 3).status().code(), StatusCode::kFixCall) << group_text(ranks);
}

TEST(GroupList, MayLackRanksIfTheSizeOfTheJobChanges) {
  const std::vector<std::vector<int>> given{{1}, {0, 3}, {0, 1, 2}, {7, 9}, {0, 2}};
  EXPECT_THAT(all_groups(given, 3, JobSize::kChanges).value(),
              ElementsAre(ElementsAre(0, 1, 2), ElementsAre(1), ElementsAre(), ElementsAre(0, 1, 2),
                          ElementsAre(), ElementsAre(0, 2)))
      << "each group has the same number in a job of any size";
  for (const std::vector<std::vector<int>>& invalid_groups :
       {std::vector<std::vector<int>>{{}}, {{9, 3}}, {{3, 3}}, {{-1, 3}}, {{3}, {3}}})
    EXPECT_EQ(all_groups(invalid_groups, 3, JobSize::kChanges).status().code(),
              StatusCode::kFixCall)
        << groups_text(invalid_groups);
}

TEST(GroupList, IsBounded) {
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < static_cast<int>(kGroupsMax) - 1; ++rank) groups.push_back({rank});
  EXPECT_TRUE(all_groups(groups, 40).ok());
  groups.push_back({0, 1});
  EXPECT_THAT(all_groups(groups, 40).status().message(),
              HasSubstr("32 groups are too many; at most 31 are possible"));
}

TEST(GroupList, HasATextForErrors) {
  EXPECT_EQ(groups_text({{0, 1}, {2}}), "[[0, 1], [2]]");
  EXPECT_EQ(groups_text({}), "[]");
}

}  // namespace
}  // namespace farandole
