#include "coordination/fusion_planner.h"

#include <gmock/gmock.h>

#include <vector>

#include "control/limits.h"

namespace farandole {
namespace {

using testing::ElementsAre;

FusionItem item(std::int64_t bytes, std::uint64_t fusion_key = 1, std::uint32_t batch = 0,
                std::uint64_t waits = 0) {
  return {fusion_key, bytes, batch, waits};
}

TEST(FusionPlanner, FillsBucketsInOrder) {
  const std::vector<FusionItem> items = {item(40), item(40), item(40), item(20), item(100)};
  EXPECT_THAT(plan_buckets(items, 100),
              ElementsAre(ElementsAre(0, 1, 3), ElementsAre(2), ElementsAre(4)));
}

TEST(FusionPlanner, AnItemLargerThanABucketIsAlone) {
  const std::vector<FusionItem> items = {item(10), item(500), item(10)};
  EXPECT_THAT(plan_buckets(items, 1000), ElementsAre(ElementsAre(0, 1, 2)));
  EXPECT_THAT(plan_buckets(items, 100),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
}

TEST(FusionPlanner, FusesNothingWithoutFusionBytesOrWithoutAKey) {
  const std::vector<FusionItem> items_with_key = {item(0), item(0)};
  EXPECT_THAT(plan_buckets(items_with_key, 0), ElementsAre(ElementsAre(0), ElementsAre(1)));
  const std::vector<FusionItem> items_without_key = {item(1, 0), item(1, 0)};
  EXPECT_THAT(plan_buckets(items_without_key, 100), ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(plan_buckets({}, 100), ElementsAre());
}

TEST(FusionPlanner, AnItemMovesPastOthersButNotTooFar) {
  const std::vector<FusionItem> items = {item(10), item(60, 2), item(10), item(60, 2), item(10)};
  EXPECT_THAT(plan_buckets(items, 100),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1), ElementsAre(3), ElementsAre(4)));
  EXPECT_THAT(plan_buckets(items, 120), ElementsAre(ElementsAre(0, 2, 4), ElementsAre(1, 3)));
}

TEST(FusionPlanner, NeverFusesAcrossAWaitOfAnyMember) {
  const std::vector<FusionItem> items = {item(1, 1, 0, 7), item(1, 1, 0, 8), item(1, 1, 0, 7),
                                         item(1, 1, 0, 8)};
  EXPECT_THAT(plan_buckets(items, 100), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
}

TEST(FusionPlanner, ABatchStaysTogetherIfItFits) {
  const std::vector<FusionItem> items = {item(50), item(30, 1, 7), item(30, 1, 7), item(30, 1, 7)};
  EXPECT_THAT(plan_buckets(items, 100), ElementsAre(ElementsAre(0), ElementsAre(1, 2, 3)));
  EXPECT_THAT(plan_buckets(items, 80), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_THAT(plan_buckets(items, 140), ElementsAre(ElementsAre(0, 1, 2, 3)));
}

TEST(FusionPlanner, ABucketFitsIntoAMessage) {
  const std::vector<FusionItem> items(2 * kListLengthMax + 1, item(1));
  const auto buckets = plan_buckets(items, 1 << 20);
  ASSERT_EQ(buckets.size(), 3U);
  EXPECT_EQ(buckets[0].size(), kListLengthMax);
  EXPECT_EQ(buckets[2].size(), 1U);
}

}  // namespace
}  // namespace farandole
