#include "coordination/learner.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace farandole {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

using Ids = std::vector<std::uint32_t>;

// Two members that submit alike. Ids 1 to 9 have names; otherwise their signatures are equal.
class LearnerOfTwo : public testing::Test {
 protected:
  LearnerOfTwo() {
    for (std::uint32_t id = 1; id <= 9; ++id)
      names_.define(
          id, {.name = std::to_string(id), .operation = Operation::kAllreduce, .dimensions = {10}});
  }

  // A segment behind a quiet point. Returns whether the plan may begin with its first step.
  bool segment(const Ids& ids) {
    ++quiet_points_;
    return issue(ids);
  }
  // Returns whether there was a border.
  bool issue(const Ids& ids) {
    bool border = false;
    for (const auto id : ids) {
      const std::vector<Moment> moments(2, {.waits = 0, .quiet_points = quiet_points_});
      border |= learner_.is_border(id, moments);
      learner_.note(id, moments);
    }
    return border;
  }
  // The ids of all atoms, in order and by bucket.
  std::vector<std::vector<Ids>> atoms() const {
    std::vector<std::vector<Ids>> all;
    for (std::uint32_t number = 1; number < 100; ++number) {
      if (learner_.plan().find(number) == nullptr) continue;
      auto& buckets = all.emplace_back();
      for (const auto& bucket : learner_.plan().find(number)->buckets)
        buckets.push_back(bucket.ids);
    }
    return all;
  }
  Ids successors(std::uint32_t atom, Where where) const {
    Ids all;
    for (const auto& succession : learner_.plan().find(atom)->successors)
      if (succession.holds(where)) all.push_back(succession.to->number);
    return all;
  }

  NameTable names_;
  Learner learner_{names_, 20};  // room for two of them in a bucket
  std::uint32_t quiet_points_ = 0;
};

TEST_F(LearnerOfTwo, ASegmentThatCameTwiceIsAnAtom) {
  EXPECT_FALSE(segment({9}));
  EXPECT_TRUE(segment({1, 2, 3}));
  EXPECT_TRUE(segment({3, 1, 2}));
  EXPECT_THAT(atoms(), IsEmpty());
  EXPECT_TRUE(segment({4}));
  EXPECT_THAT(atoms(), ElementsAre(ElementsAre(Ids{3, 1}, Ids{2})));
}

TEST_F(LearnerOfTwo, EditsMakeTheSamePlanOfAnother) {
  for (int round = 0; round < 5; ++round) segment({1, 2, 3});
  Plan copy(names_);
  for (const auto& item : learner_.take_edits()) {
    if (const auto* bucket = std::get_if<AddBucket>(&item)) {
      ASSERT_EQ(copy.apply(*bucket), Status());
    }
    if (const auto* succession = std::get_if<AddSuccession>(&item)) {
      ASSERT_EQ(copy.apply(*succession), Status());
    }
  }
  ASSERT_NE(copy.find(1), nullptr);
  EXPECT_EQ(copy.find(1)->buckets.size(), 2U);
  EXPECT_THAT(copy.find(1)->successors, SizeIs(1));
  EXPECT_THAT(learner_.take_edits(), IsEmpty());
}

TEST_F(LearnerOfTwo, WhatDoesNotBeginAtABorderDoesNotCount) {
  for (int round = 0; round < 3; ++round) {
    learner_.restart();
    segment({1, 2});
    segment({3, 4, std::uint32_t(5 + round)});
  }
  segment({9});
  EXPECT_THAT(atoms(), IsEmpty());
}

TEST_F(LearnerOfTwo, AfterARestartTheFirstMayBeABorder) {
  learner_.restart({0, 0});
  EXPECT_TRUE(segment({1}));
  learner_.restart({1, 5});
  EXPECT_FALSE(segment({1}));
}

TEST_F(LearnerOfTwo, AtomsThatFollowOneAnotherAreSuccessions) {
  segment({9});
  for (int round = 0; round < 3; ++round) {
    segment({1, 2});
    segment({3});
  }
  segment({1, 2});
  segment({9});
  EXPECT_THAT(successors(1, Where::kBehindBorder), ElementsAre(2));
  EXPECT_THAT(successors(2, Where::kBehindBorder), ElementsAre(1));
  EXPECT_THAT(successors(1, Where::kInside), IsEmpty());
}

// The shared part comes first, since it is not yet known which of the two it will be.
TEST_F(LearnerOfTwo, SegmentsThatOverlapAreCut) {
  segment({9});
  for (int round = 0; round < 3; ++round) {
    segment({1, 2, 3});
    segment({4, 2});
  }
  segment({9});
  EXPECT_THAT(atoms(),
              ElementsAre(ElementsAre(Ids{2}), ElementsAre(Ids{1}, Ids{3}), ElementsAre(Ids{4})));
  EXPECT_THAT(successors(2, Where::kInside), ElementsAre(3, 4));
}

TEST_F(LearnerOfTwo, WithoutBordersWhatComesThreeTimesInARowIsAnAtom) {
  EXPECT_FALSE(issue({7, 1, 2, 3}));
  EXPECT_FALSE(issue({1, 3, 2}));
  EXPECT_FALSE(issue({3, 1, 2}));
  EXPECT_FALSE(issue({2, 1, 3}));
  EXPECT_TRUE(issue({1}));
  ASSERT_THAT(atoms(), SizeIs(1));
  EXPECT_THAT(successors(1, Where::kInside), ElementsAre(1));
  EXPECT_THAT(successors(1, Where::kBehindBorder), ElementsAre(1));
}

TEST_F(LearnerOfTwo, ThePlanStartsWithTheAtomThatIsExpected) {
  segment({9});
  for (int round = 0; round < 3; ++round) {
    segment({1, 2, 3});
    segment({4, 2});
  }
  segment({1, 2, 3});
  EXPECT_TRUE(segment({2}));
  EXPECT_EQ(learner_.start_for(5, {}), 0U);
  EXPECT_EQ(learner_.start_for(2, {4}), 2U);
  EXPECT_EQ(learner_.start_for(4, {2}), 2U);
  EXPECT_EQ(learner_.start_for(4, {}), 0U);  // no segment begins with it
}

TEST_F(LearnerOfTwo, AWaitIsLearnedTheSecondTime) {
  segment({9});
  for (int round = 0; round < 5; ++round) segment({1, 2, 3});
  ASSERT_THAT(atoms(), ElementsAre(ElementsAre(Ids{1, 2}, Ids{3})));
  learner_.learn_wait(1, 0, {2});
  EXPECT_THAT(atoms(), ElementsAre(ElementsAre(Ids{1, 2}, Ids{3})));
  learner_.learn_wait(1, 0, {2});
  EXPECT_THAT(atoms(), ElementsAre(ElementsAre(Ids{2}, Ids{1}, Ids{3})));
  for (int time = 0; time < 2; ++time) learner_.learn_wait(1, 1, {3});
  EXPECT_THAT(atoms(), ElementsAre(ElementsAre(Ids{2}, Ids{3}, Ids{1})));
  EXPECT_THAT(successors(1, Where::kBehindBorder), ElementsAre(1));
  for (int time = 0; time < 2; ++time) learner_.learn_wait(1, 0, {});  // nothing to learn
  for (int time = 0; time < 2; ++time) learner_.learn_wait(1, 9, {2});
  for (int time = 0; time < 2; ++time) learner_.learn_wait(7, 0, {2});
  EXPECT_THAT(atoms(), ElementsAre(ElementsAre(Ids{2}, Ids{3}, Ids{1})));
  for (int time = 0; time < 2; ++time) learner_.learn_wait(1, 2, {});
  EXPECT_THAT(atoms(), ElementsAre(ElementsAre(Ids{2}, Ids{3}), ElementsAre(Ids{1})));
  EXPECT_THAT(successors(2, Where::kInside), ElementsAre(3));
  EXPECT_THAT(successors(3, Where::kBehindBorder), ElementsAre(2));
}

TEST_F(LearnerOfTwo, AnyWaitAtABucketIsLearnedTheFourthTime) {
  Learner learner(names_, 100);
  for (std::uint32_t round = 0; round < 4; ++round) {
    const std::vector<Moment> moments(2, {.quiet_points = round});
    for (const std::uint32_t id : {1U, 2U, 3U}) {
      learner.is_border(id, moments);
      learner.note(id, moments);
    }
  }
  ASSERT_NE(learner.plan().find(1), nullptr);
  const auto& buckets = learner.plan().find(1)->buckets;
  for (const auto& ready : {Ids{1}, Ids{2}, Ids{3}}) learner.learn_wait(1, 0, ready);
  EXPECT_THAT(buckets, SizeIs(1));
  learner.learn_wait(1, 0, {1, 2});
  ASSERT_NE(learner.plan().find(1), nullptr);
  EXPECT_THAT(learner.plan().find(1)->buckets, SizeIs(2));
}

// One part comes first on a member, which waits for it before it submits the rest.
TEST_F(LearnerOfTwo, AnAtomThatWasWaitedForInVainIsLearnedToFollow) {
  segment({9});
  for (int round = 0; round < 3; ++round) segment({1, 2, 3});
  for (int round = 0; round < 3; ++round) segment({2, 3});
  segment({1, 2, 3});
  ASSERT_THAT(successors(2, Where::kInside), ElementsAre(3));
  ASSERT_EQ(learner_.start_for(1, {2}), 2U);
  for (int time = 0; time < 2; ++time) learner_.learn_order(2, {2, 77});  // nothing to learn
  for (int time = 0; time < 2; ++time) learner_.learn_order(77, {3});
  learner_.learn_order(2, {3});
  EXPECT_EQ(learner_.start_for(1, {2}), 2U);
  learner_.learn_order(2, {3});
  EXPECT_EQ(learner_.start_for(1, {2}), 3U);
  EXPECT_THAT(successors(3, Where::kInside), ElementsAre(2));
  EXPECT_THAT(successors(2, Where::kInside), IsEmpty());
  EXPECT_THAT(successors(2, Where::kBehindBorder), ElementsAre(3));
}

TEST_F(LearnerOfTwo, SuccessionsAreLearnedFromARaise) {
  segment({9});
  for (int round = 0; round < 3; ++round) segment({1, 2});
  for (int round = 0; round < 3; ++round) segment({3});
  segment({9});
  EXPECT_EQ(learner_.add_succession(2, {77, 1}, Where::kBehindBorder), 1U);
  EXPECT_THAT(successors(2, Where::kBehindBorder), testing::Contains(1));
  EXPECT_EQ(learner_.add_succession(2, {77}, Where::kInside), 0U);
  EXPECT_EQ(learner_.add_succession(77, {1}, Where::kInside), 0U);
}

TEST_F(LearnerOfTwo, ForgettingANameDropsItsAtom) {
  segment({9});
  for (int round = 0; round < 3; ++round) segment({1, 2});
  ASSERT_THAT(atoms(), SizeIs(1));
  learner_.forget(1);
  EXPECT_THAT(atoms(), IsEmpty());
  learner_.forget(8);
  EXPECT_FALSE(segment({1}));  // what ran before is forgotten
}

}  // namespace
}  // namespace farandole
