#include "submission/context_tracker.h"

#include <gtest/gtest.h>

namespace farandole {
namespace {

constexpr GroupId kOtherGroup = 3;

ContextTracker of_two_groups() {
  ContextTracker contexts;
  contexts.add_group(kWorld);
  contexts.add_group(kOtherGroup);
  return contexts;
}

TEST(ContextTracker, AQuiescentPointIsASubmissionAfterAllOthersWereObserved) {
  ContextTracker contexts = of_two_groups();
  EXPECT_EQ(contexts.submitted(kWorld, 0), (SubmissionContext{.waits = 0, .quiescent_points = 1}));
  EXPECT_EQ(contexts.submitted(kWorld, 0), (SubmissionContext{.waits = 0, .quiescent_points = 1}));
  contexts.observed(kWorld);
  EXPECT_EQ(contexts.submitted(kWorld, 0), (SubmissionContext{.waits = 1, .quiescent_points = 1}));
  contexts.observed(kWorld);
  contexts.observed(kWorld);
  EXPECT_EQ(contexts.submitted(kWorld, 0), (SubmissionContext{.waits = 3, .quiescent_points = 2}));
}

TEST(ContextTracker, CountsQuiescentPointsPerGroupAndWaitsPerRank) {
  ContextTracker contexts = of_two_groups();
  (void)contexts.submitted(kWorld, 0);
  EXPECT_EQ(contexts.submitted(kOtherGroup, 0),
            (SubmissionContext{.waits = 0, .quiescent_points = 1}));
  contexts.observed(kOtherGroup);
  EXPECT_EQ(contexts.submitted(kWorld, 0), (SubmissionContext{.waits = 1, .quiescent_points = 1}));
  EXPECT_EQ(contexts.submitted(kOtherGroup, 0),
            (SubmissionContext{.waits = 1, .quiescent_points = 2}));
}

TEST(ContextTracker, ADroppedCallCountsAsNoWaitAndDelaysNoQuiescentPoint) {
  ContextTracker contexts = of_two_groups();
  (void)contexts.submitted(kWorld, 0);
  contexts.dropped(kWorld);
  EXPECT_EQ(contexts.submitted(kWorld, 0), (SubmissionContext{.waits = 0, .quiescent_points = 2}));
}

TEST(ContextTracker, ABatchHasOneNumber) {
  ContextTracker contexts = of_two_groups();
  const std::uint32_t first = contexts.next_batch();
  EXPECT_EQ(contexts.submitted(kWorld, first),
            (SubmissionContext{.waits = 0, .quiescent_points = 1, .batch = 1}));
  EXPECT_EQ(contexts.submitted(kWorld, first),
            (SubmissionContext{.waits = 0, .quiescent_points = 1, .batch = 1}));
  EXPECT_EQ(contexts.next_batch(), 2U);
}

}  // namespace
}  // namespace farandole
