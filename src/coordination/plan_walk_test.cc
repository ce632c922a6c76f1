#include "coordination/plan_walk.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "control/limits.h"

namespace farandole {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Fragment 1 is {1, 2}, {3}; fragment 2 is {4}; fragment 3 is {5}.
class PlanOfThreeFragments : public testing::Test {
 protected:
  PlanOfThreeFragments() {
    for (std::uint32_t id = 1; id <= 5; ++id) {
      Signature signature;
      signature.name = std::to_string(id);
      interned_.push_back(std::make_unique<InternedSignature>(signature));
      names_.define(id, signature);
    }
    edit(AddBucket{1, {1, 2}});
    edit(AddBucket{1, {3}});
    edit(AddBucket{2, {4}});
    edit(AddBucket{3, {5}});
    edit(AddEdge{1, 2, EdgeKind::kSameSuperstep});
    edit(AddEdge{1, 1, EdgeKind::kNextSuperstep});
    walk_.go_to(plan_.find(1));
  }

  template <class Edit>
  void edit(const Edit& item) {
    EXPECT_EQ(plan_.apply(item), Status());
  }
  void submit(std::uint32_t id, std::uint32_t quiescent_points = 0, std::uint32_t waits = 0) {
    in_flight_.add(id, *interned_[id - 1], {.waits = waits, .quiescent_points = quiescent_points});
  }
  // Enters the next bucket, if there is one, and completes it. Returns the call ids.
  std::vector<CallId> run() {
    std::vector<CallId> call_ids;
    if (walk_.next_bucket() == nullptr) return call_ids;
    const auto slots = walk_.slots();
    walk_.enter();
    for (const auto slot : slots) {
      call_ids.push_back(in_flight_[slot].call_id);
      in_flight_.remove(slot);
    }
    return call_ids;
  }

  std::vector<std::unique_ptr<InternedSignature>> interned_;
  NameTable names_;
  Plan plan_{names_};
  InFlight in_flight_;
  std::uint32_t quiescent_points_ = 0;
  PlanWalk walk_{plan_, in_flight_, quiescent_points_};
};

TEST_F(PlanOfThreeFragments, BucketsAreEnteredWholeAndInOrder) {
  submit(2);
  EXPECT_THAT(run(), IsEmpty());
  submit(3);
  EXPECT_THAT(run(), IsEmpty());
  submit(1);
  EXPECT_THAT(run(), ElementsAre(1, 2));
  EXPECT_EQ(walk_.fragments_run(), 0U);
  EXPECT_THAT(run(), ElementsAre(3));
  EXPECT_EQ(walk_.fragments_run(), 1U);
  EXPECT_THAT(run(), IsEmpty());
}

TEST_F(PlanOfThreeFragments, TheSuccessorDependsOnTheKindOfTheEdge) {
  for (const std::uint32_t id : {1U, 2U, 3U}) submit(id);
  run();
  run();
  for (const std::uint32_t id : {1U, 2U}) submit(id);
  EXPECT_THAT(run(), IsEmpty());
  submit(4);
  EXPECT_THAT(run(), ElementsAre(4));
  EXPECT_THAT(run(), IsEmpty());
}

TEST_F(PlanOfThreeFragments, AfterASynchronizationPointAFragmentMayFollowItself) {
  for (const std::uint32_t id : {1U, 2U, 3U}) submit(id);
  run();
  run();
  submit(4, 1);
  EXPECT_THAT(run(), IsEmpty());
  for (const std::uint32_t id : {1U, 2U}) submit(id, 1);
  EXPECT_THAT(run(), ElementsAre(1, 2));
  quiescent_points_ = 1;
  submit(3, 1);
  EXPECT_THAT(run(), ElementsAre(3));
}

TEST_F(PlanOfThreeFragments, AnotherSignatureOfAPlannedNameIsNotReady) {
  auto changed_signature = interned_[0]->signature;
  changed_signature.root_rank = 2;
  const InternedSignature interned_change(changed_signature);
  in_flight_.add(9, interned_change, {});
  submit(2);
  EXPECT_THAT(run(), IsEmpty());
  EXPECT_THAT(walk_.raise_for_wait().ready, ElementsAre(2));
}

TEST_F(PlanOfThreeFragments, CallsAreNotFusedAcrossAWait) {
  submit(2, 0, 4);
  submit(1, 0, 5);
  EXPECT_THAT(run(), IsEmpty());
  EXPECT_THAT(walk_.raise_for_wait().ready, ElementsAre(2));
  while (in_flight_.size() > 0) in_flight_.remove(in_flight_.first());
  submit(1, 0, 5);
  submit(2, 0, 5);
  EXPECT_THAT(run(), ElementsAre(1, 2));
}

TEST_F(PlanOfThreeFragments, NoBucketIsReadyOutsideThePlan) {
  walk_.go_to(nullptr);
  submit(4);
  EXPECT_THAT(run(), IsEmpty());
}

TEST_F(PlanOfThreeFragments, ARaiseDescribesTheWait) {
  const auto raise_for_bucket = [](std::uint32_t fragment, std::uint32_t index,
                                   std::vector<std::uint32_t> ready) {
    Raise raise;
    raise.cause = Raise::Cause::kBucket;
    raise.fragment = fragment;
    raise.bucket = index;
    raise.ready = std::move(ready);
    return raise;
  };
  submit(2);
  EXPECT_EQ(walk_.raise_for_wait(), raise_for_bucket(1, 0, {2}));
  submit(3);
  EXPECT_EQ(walk_.raise_for_wait(), raise_for_bucket(1, 0, {2, 3}));
  in_flight_.remove(in_flight_.first());
  EXPECT_EQ(walk_.raise_for_wait(), raise_for_bucket(1, 0, {3}));
  in_flight_.remove(in_flight_.first());
  submit(5);
  submit(4);
  Raise missing_edge;
  missing_edge.cause = Raise::Cause::kMissingEdge;
  missing_edge.fragment = 1;
  missing_edge.ready = {3, 2};
  missing_edge.edge_kind = EdgeKind::kSameSuperstep;
  EXPECT_EQ(walk_.raise_for_wait(), missing_edge);

  while (in_flight_.size() > 0) in_flight_.remove(in_flight_.first());
  for (const std::uint32_t id : {1U, 2U, 3U}) submit(id);
  run();
  run();
  submit(2, 1);
  EXPECT_EQ(walk_.raise_for_wait(), raise_for_bucket(1, 0, {2}));
  in_flight_.remove(in_flight_.first());
  submit(5, 1);
  missing_edge.bucket = 2;
  missing_edge.ready = {3};
  missing_edge.edge_kind = EdgeKind::kNextSuperstep;
  EXPECT_EQ(walk_.raise_for_wait(), missing_edge);
}

// The plan begins with the id 1. After it come more ids than a raise can list. The submissions of
// all ids except 1 are in flight.
class LongPlan : public testing::TestWithParam<bool> {
 protected:
  static constexpr std::uint32_t kIdCount = kListLengthMax + 10;
  explicit LongPlan(bool in_one_fragment = GetParam()) {
    for (std::uint32_t id = 1; id <= kIdCount; ++id) {
      Signature signature;
      signature.name = std::to_string(id);
      const auto& interned = names_.define(id, signature);
      EXPECT_EQ(plan_.apply(AddBucket{in_one_fragment ? 1 : id, {id}}), Status());
      if (id != 1) in_flight_.add(id, interned, {});
    }
    walk_.go_to(plan_.find(1));
  }

  NameTable names_;
  Plan plan_{names_};
  InFlight in_flight_;
  std::uint32_t quiescent_points_ = 0;
  PlanWalk walk_{plan_, in_flight_, quiescent_points_};
};

TEST_P(LongPlan, ARaiseListsAsManyIdsAsFitIntoAMessage) {
  ASSERT_EQ(walk_.next_bucket(), nullptr);
  const auto raise = walk_.raise_for_wait();
  EXPECT_EQ(raise.cause, GetParam() ? Raise::Cause::kBucket : Raise::Cause::kMissingEdge);
  ASSERT_EQ(raise.ready.size(), kListLengthMax);
  for (std::uint32_t index = 0; index < kListLengthMax; ++index)
    EXPECT_EQ(raise.ready[index], index + 2);
}

INSTANTIATE_TEST_SUITE_P(Fragments, LongPlan, testing::Bool(), [](const auto& instance) {
  return instance.param ? "InOneFragment" : "InManyFragments";
});

}  // namespace
}  // namespace farandole
