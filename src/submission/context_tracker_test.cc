#include "submission/context_tracker.h"

#include <gtest/gtest.h>

namespace farandole {
namespace {

constexpr GroupId kOtherGroup = 3;

ContextTracker tracker_of_two_groups() {
  ContextTracker contexts;
  contexts.add_group(kWorld);
  contexts.add_group(kOtherGroup);
  return contexts;
}

TEST(ContextTracker, AQuiescentPointIsASubmissionAfterAllOthersWereObserved) {
  ContextTracker contexts = tracker_of_two_groups();
  EXPECT_EQ(contexts.count_submitted(kWorld, 0),
            (SubmissionContext{.waits = 0, .quiescent_points = 1}));
  EXPECT_EQ(contexts.count_submitted(kWorld, 0),
            (SubmissionContext{.waits = 0, .quiescent_points = 1}));
  contexts.count_observed(kWorld);
  EXPECT_EQ(contexts.count_submitted(kWorld, 0),
            (SubmissionContext{.waits = 1, .quiescent_points = 1}));
  contexts.count_observed(kWorld);
  contexts.count_observed(kWorld);
  EXPECT_EQ(contexts.count_submitted(kWorld, 0),
            (SubmissionContext{.waits = 3, .quiescent_points = 2}));
}

TEST(ContextTracker, CountsQuiescentPointsPerGroupAndWaitsPerRank) {
  ContextTracker contexts = tracker_of_two_groups();
  (void)contexts.count_submitted(kWorld, 0);
  EXPECT_EQ(contexts.count_submitted(kOtherGroup, 0),
            (SubmissionContext{.waits = 0, .quiescent_points = 1}));
  contexts.count_observed(kOtherGroup);
  EXPECT_EQ(contexts.count_submitted(kWorld, 0),
            (SubmissionContext{.waits = 1, .quiescent_points = 1}));
  EXPECT_EQ(contexts.count_submitted(kOtherGroup, 0),
            (SubmissionContext{.waits = 1, .quiescent_points = 2}));
}

TEST(ContextTracker, ADroppedCallCountsAsNoWaitAndDelaysNoQuiescentPoint) {
  ContextTracker contexts = tracker_of_two_groups();
  (void)contexts.count_submitted(kWorld, 0);
  contexts.count_dropped(kWorld);
  EXPECT_EQ(contexts.count_submitted(kWorld, 0),
            (SubmissionContext{.waits = 0, .quiescent_points = 2}));
}

TEST(ContextTracker, ABatchHasOneNumber) {
  ContextTracker contexts = tracker_of_two_groups();
  const std::uint32_t batch_number = contexts.next_batch();
  EXPECT_EQ(contexts.count_submitted(kWorld, batch_number),
            (SubmissionContext{.waits = 0, .quiescent_points = 1, .batch = 1}));
  EXPECT_EQ(contexts.count_submitted(kWorld, batch_number),
            (SubmissionContext{.waits = 0, .quiescent_points = 1, .batch = 1}));
  EXPECT_EQ(contexts.next_batch(), 2U);
}

}  // namespace
}  // namespace farandole
