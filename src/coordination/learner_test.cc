#include "coordination/learner.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "control/limits.h"

namespace farandole {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

using Ids = std::vector<std::uint32_t>;

// Two members submit the same calls. The signatures of ids 1 to 9 differ only in their names.
class LearnerOfTwoMembers : public testing::Test {
 protected:
  LearnerOfTwoMembers() {
    for (std::uint32_t id = 1; id <= 9; ++id)
      names_.define(
          id, {.name = std::to_string(id), .operation = Operation::kAllreduce, .dimensions = {10}});
  }

  // Issues a superstep after a quiescent point. Returns whether a plan may begin before it.
  bool issue_superstep(const Ids& ids) {
    ++quiescent_points_;
    return issue(ids);
  }
  // Issues the steps of these ids. Returns whether a plan may begin before any of them.
  bool issue(const Ids& ids) {
    bool synchronization_point = false;
    for (const auto id : ids) {
      const std::vector<SubmissionContext> contexts(
          2, {.waits = 0, .quiescent_points = quiescent_points_});
      synchronization_point |= learner_.try_end_superstep(id, contexts);
      learner_.record(id, contexts);
    }
    return synchronization_point;
  }
  // The ids of all fragments, in order and by bucket.
  std::vector<std::vector<Ids>> fragments() const {
    std::vector<std::vector<Ids>> all;
    for (std::uint32_t number = 1; number < 100; ++number) {
      if (learner_.plan().find(number) == nullptr) continue;
      auto& buckets = all.emplace_back();
      for (const auto& bucket : learner_.plan().find(number)->buckets)
        buckets.push_back(bucket.ids);
    }
    return all;
  }
  Ids successors(std::uint32_t fragment, EdgeKind kind) const {
    Ids all;
    for (const auto& edge : learner_.plan().find(fragment)->successors)
      if (edge.includes(kind)) all.push_back(edge.to->number);
    return all;
  }

  NameTable names_;
  Learner learner_{names_, 20};  // a bucket has room for two of these tensors
  std::uint32_t quiescent_points_ = 0;
};

TEST_F(LearnerOfTwoMembers, ARepeatedSuperstepBecomesAFragment) {
  EXPECT_FALSE(issue_superstep({9}));
  EXPECT_TRUE(issue_superstep({1, 2, 3}));
  EXPECT_TRUE(issue_superstep({3, 1, 2}));
  EXPECT_THAT(fragments(), IsEmpty());
  EXPECT_TRUE(issue_superstep({4}));
  EXPECT_THAT(fragments(), ElementsAre(ElementsAre(Ids{3, 1}, Ids{2})));
}

// The first part of the program has no synchronization point, and more steps than the learner's
// history can hold.
TEST_F(LearnerOfTwoMembers, ALoopIsLearnedAfterALongProgramWithoutRepetition) {
  constexpr std::uint32_t kFirstId = 100;
  constexpr std::uint32_t kIdCount = 65000;
  for (std::uint32_t id = kFirstId; id < kFirstId + kIdCount; ++id)
    names_.define(
        id, {.name = std::to_string(id), .operation = Operation::kAllreduce, .dimensions = {10}});
  issue_superstep({9});
  issue_superstep({8});
  for (std::uint32_t id = kFirstId; id < kFirstId + kIdCount; ++id) {
    issue({id});
    ASSERT_LE(learner_.history_bytes(), kHistoryBytesMax);
  }
  EXPECT_THAT(fragments(), IsEmpty());
  for (int round = 0; round < 3; ++round) EXPECT_TRUE(issue_superstep({1, 2, 3}));
  EXPECT_THAT(fragments(), ElementsAre(ElementsAre(Ids{1, 2}, Ids{3})));
}

// The learner forgets the beginning of a superstep that is too long. It must not learn the end of
// this superstep as a superstep.
TEST_F(LearnerOfTwoMembers, ATooLongSuperstepIsNotLearned) {
  constexpr std::uint32_t kFirstId = 100;
  Ids all;
  for (std::uint32_t id = kFirstId; id < kFirstId + 20000; ++id) {
    names_.define(
        id, {.name = std::to_string(id), .operation = Operation::kAllreduce, .dimensions = {10}});
    all.push_back(id);
  }
  for (int round = 0; round < 4; ++round) {
    issue_superstep({9});
    issue_superstep(all);
  }
  issue_superstep({9});
  EXPECT_THAT(fragments(), ElementsAre(ElementsAre(Ids{9})));
}

TEST_F(LearnerOfTwoMembers, CallsAreNotFusedAcrossAWaitOfAnyMember) {
  for (int round = 0; round < 3; ++round) {
    ++quiescent_points_;
    for (const std::uint32_t id : {1U, 2U, 3U}) {
      const std::vector<SubmissionContext> contexts = {
          {.waits = 5, .quiescent_points = quiescent_points_},
          {.waits = id == 1 ? 5U : 6U, .quiescent_points = quiescent_points_}};
      learner_.try_end_superstep(id, contexts);
      learner_.record(id, contexts);
    }
  }
  issue_superstep({9});
  EXPECT_THAT(fragments(), ElementsAre(ElementsAre(Ids{1}, Ids{2, 3})));
}

TEST_F(LearnerOfTwoMembers, EditsUpdateACopyOfThePlan) {
  for (int round = 0; round < 5; ++round) issue_superstep({1, 2, 3});
  Plan copy(names_);
  for (const auto& item : learner_.take_edits()) {
    if (const auto* bucket = std::get_if<AddBucket>(&item)) {
      ASSERT_EQ(copy.apply(*bucket), Status());
    }
    if (const auto* edge = std::get_if<AddEdge>(&item)) {
      ASSERT_EQ(copy.apply(*edge), Status());
    }
  }
  ASSERT_NE(copy.find(1), nullptr);
  EXPECT_EQ(copy.find(1)->buckets.size(), 2U);
  EXPECT_THAT(copy.find(1)->successors, SizeIs(1));
  EXPECT_THAT(learner_.take_edits(), IsEmpty());
}

TEST_F(LearnerOfTwoMembers, AnIncompleteSuperstepIsNotLearned) {
  for (int round = 0; round < 3; ++round) {
    learner_.restart();
    issue_superstep({1, 2});
    issue_superstep({3, 4, std::uint32_t(5 + round)});
  }
  issue_superstep({9});
  EXPECT_THAT(fragments(), IsEmpty());
}

TEST_F(LearnerOfTwoMembers, AfterARestartTheFirstStepMayBeASynchronizationPoint) {
  learner_.restart({0, 0});
  EXPECT_TRUE(issue_superstep({1}));
  learner_.restart({1, 5});
  EXPECT_FALSE(issue_superstep({1}));
}

TEST_F(LearnerOfTwoMembers, SuccessiveFragmentsBecomeEdges) {
  issue_superstep({9});
  for (int round = 0; round < 3; ++round) {
    issue_superstep({1, 2});
    issue_superstep({3});
  }
  issue_superstep({1, 2});
  issue_superstep({9});
  EXPECT_THAT(successors(1, EdgeKind::kNextSuperstep), ElementsAre(2));
  EXPECT_THAT(successors(2, EdgeKind::kNextSuperstep), ElementsAre(1));
  EXPECT_THAT(successors(1, EdgeKind::kSameSuperstep), IsEmpty());
}

// The shared part comes first, because at the beginning of a superstep the group cannot know which
// of the two supersteps has begun.
TEST_F(LearnerOfTwoMembers, OverlappingSuperstepsAreCut) {
  issue_superstep({9});
  for (int round = 0; round < 3; ++round) {
    issue_superstep({1, 2, 3});
    issue_superstep({4, 2});
  }
  issue_superstep({9});
  EXPECT_THAT(fragments(),
              ElementsAre(ElementsAre(Ids{2}), ElementsAre(Ids{1}, Ids{3}), ElementsAre(Ids{4})));
  EXPECT_THAT(successors(2, EdgeKind::kSameSuperstep), ElementsAre(3, 4));
}

TEST_F(LearnerOfTwoMembers, WithoutSynchronizationPointsASequenceIsLearnedTheThirdTime) {
  EXPECT_FALSE(issue({7, 1, 2, 3}));
  EXPECT_FALSE(issue({1, 3, 2}));
  EXPECT_FALSE(issue({3, 1, 2}));
  EXPECT_FALSE(issue({2, 1, 3}));
  EXPECT_TRUE(issue({1}));
  ASSERT_THAT(fragments(), SizeIs(1));
  EXPECT_THAT(successors(1, EdgeKind::kSameSuperstep), ElementsAre(1));
  EXPECT_THAT(successors(1, EdgeKind::kNextSuperstep), ElementsAre(1));
}

TEST_F(LearnerOfTwoMembers, ThePlanStartsWithTheExpectedFragment) {
  issue_superstep({9});
  for (int round = 0; round < 3; ++round) {
    issue_superstep({1, 2, 3});
    issue_superstep({4, 2});
  }
  issue_superstep({1, 2, 3});
  EXPECT_TRUE(issue_superstep({2}));
  EXPECT_EQ(learner_.choose_start(5, {}), 0U);
  EXPECT_EQ(learner_.choose_start(2, {4}), 2U);
  EXPECT_EQ(learner_.choose_start(4, {2}), 2U);
  EXPECT_EQ(learner_.choose_start(4, {}), 0U);  // no superstep begins with 4
}

TEST_F(LearnerOfTwoMembers, AWaitIsLearnedTheSecondTime) {
  issue_superstep({9});
  for (int round = 0; round < 5; ++round) issue_superstep({1, 2, 3});
  ASSERT_THAT(fragments(), ElementsAre(ElementsAre(Ids{1, 2}, Ids{3})));
  learner_.learn_wait(1, 0, {2});
  EXPECT_THAT(fragments(), ElementsAre(ElementsAre(Ids{1, 2}, Ids{3})));
  learner_.learn_wait(1, 0, {2});
  EXPECT_THAT(fragments(), ElementsAre(ElementsAre(Ids{2}, Ids{1}, Ids{3})));
  for (int time = 0; time < 2; ++time) learner_.learn_wait(1, 1, {3});
  EXPECT_THAT(fragments(), ElementsAre(ElementsAre(Ids{2}, Ids{3}, Ids{1})));
  EXPECT_THAT(successors(1, EdgeKind::kNextSuperstep), ElementsAre(1));
  for (int time = 0; time < 2; ++time) learner_.learn_wait(1, 0, {});  // nothing to learn
  for (int time = 0; time < 2; ++time) learner_.learn_wait(1, 9, {2});
  for (int time = 0; time < 2; ++time) learner_.learn_wait(7, 0, {2});
  EXPECT_THAT(fragments(), ElementsAre(ElementsAre(Ids{2}, Ids{3}, Ids{1})));
  for (int time = 0; time < 2; ++time) learner_.learn_wait(1, 2, {});
  EXPECT_THAT(fragments(), ElementsAre(ElementsAre(Ids{2}, Ids{3}), ElementsAre(Ids{1})));
  EXPECT_THAT(successors(2, EdgeKind::kSameSuperstep), ElementsAre(3));
  EXPECT_THAT(successors(3, EdgeKind::kNextSuperstep), ElementsAre(2));
}

TEST_F(LearnerOfTwoMembers, WaitsForDifferentBucketsAreCountedSeparately) {
  issue_superstep({9});
  for (int round = 0; round < 5; ++round) issue_superstep({1, 2, 3});
  ASSERT_THAT(fragments(), ElementsAre(ElementsAre(Ids{1, 2}, Ids{3})));
  learner_.learn_wait(1, 0, {});
  learner_.learn_wait(1, 1, {});
  EXPECT_THAT(fragments(), ElementsAre(ElementsAre(Ids{1, 2}, Ids{3})));
  learner_.learn_wait(1, 1, {});
  EXPECT_THAT(fragments(), ElementsAre(ElementsAre(Ids{1, 2}), ElementsAre(Ids{3})));
}

TEST_F(LearnerOfTwoMembers, AFragmentThatIsNotReadyIsPutAfterTheReadyOnes) {
  issue_superstep({9});
  for (int round = 0; round < 3; ++round) issue_superstep({1, 2, 3});
  for (int round = 0; round < 3; ++round) issue_superstep({2, 3});
  issue_superstep({1, 2, 3});
  ASSERT_THAT(successors(2, EdgeKind::kSameSuperstep), ElementsAre(3));
  ASSERT_EQ(learner_.choose_start(1, {2}), 2U);
  for (int time = 0; time < 2; ++time) learner_.learn_order(2, {2, 77});  // nothing to learn
  for (int time = 0; time < 2; ++time) learner_.learn_order(77, {3});
  learner_.learn_order(2, {3});
  EXPECT_EQ(learner_.choose_start(1, {2}), 2U);
  learner_.learn_order(2, {3});
  EXPECT_EQ(learner_.choose_start(1, {2}), 3U);
  EXPECT_THAT(successors(3, EdgeKind::kSameSuperstep), ElementsAre(2));
  EXPECT_THAT(successors(2, EdgeKind::kSameSuperstep), IsEmpty());
  EXPECT_THAT(successors(2, EdgeKind::kNextSuperstep), ElementsAre(3));
}

TEST_F(LearnerOfTwoMembers, AnEdgeIsLearnedFromARaise) {
  issue_superstep({9});
  for (int round = 0; round < 3; ++round) issue_superstep({1, 2});
  for (int round = 0; round < 3; ++round) issue_superstep({3});
  issue_superstep({9});
  EXPECT_EQ(learner_.add_edge_to_one_of(2, {77, 1}, EdgeKind::kNextSuperstep), 1U);
  EXPECT_THAT(successors(2, EdgeKind::kNextSuperstep), testing::Contains(1));
  EXPECT_EQ(learner_.add_edge_to_one_of(2, {77}, EdgeKind::kSameSuperstep), 0U);
  EXPECT_EQ(learner_.add_edge_to_one_of(77, {1}, EdgeKind::kSameSuperstep), 0U);
}

TEST_F(LearnerOfTwoMembers, ForgettingANameDropsItsFragment) {
  issue_superstep({9});
  for (int round = 0; round < 3; ++round) issue_superstep({1, 2});
  ASSERT_THAT(fragments(), SizeIs(1));
  learner_.forget(1);
  EXPECT_THAT(fragments(), IsEmpty());
  learner_.forget(8);
  EXPECT_FALSE(issue_superstep({1}));  // the learner has forgotten the earlier steps
}

}  // namespace
}  // namespace farandole
