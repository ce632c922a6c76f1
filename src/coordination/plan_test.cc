#include "coordination/plan.h"

#include <gtest/gtest.h>

#include <string>

#include "coordination/signatures_in_test.h"

namespace farandole {
namespace {

class PlanOfFour : public testing::Test {
 protected:
  PlanOfFour() {
    for (std::uint32_t id = 1; id <= 4; ++id) names_.define(id, named(std::to_string(id)));
  }

  static std::uint64_t digest(std::uint32_t id) { return digest_of(named(std::to_string(id))); }

  NameTable names_;
  Plan plan_{names_};
};

TEST_F(PlanOfFour, FragmentsConsistOfBuckets) {
  ASSERT_EQ(plan_.apply(AddBucket{7, {2, 1}}), Status());
  ASSERT_EQ(plan_.apply(AddBucket{7, {3}}), Status());
  const auto* fragment = plan_.find(7);
  ASSERT_NE(fragment, nullptr);
  EXPECT_EQ(fragment->number, 7U);
  ASSERT_EQ(fragment->buckets.size(), 2U);
  EXPECT_EQ(fragment->buckets[0].signatures[0], names_.find(2));
  ContentIdentity fused;
  fused.add(*names_.find(2));
  fused.add(*names_.find(1));
  EXPECT_EQ(fragment->buckets[0].identity, fused.value());
  EXPECT_EQ(fragment->buckets[1].identity, digest(3));
  EXPECT_EQ(plan_.fragment_of(digest(1)), fragment);
  EXPECT_EQ(plan_.fragment_of(digest(4)), nullptr);
  EXPECT_TRUE(plan_.has_name(names_.find(3)->name_digest));

  ASSERT_EQ(plan_.apply(DropFragment{7}), Status());
  EXPECT_EQ(plan_.find(7), nullptr);
  EXPECT_EQ(plan_.fragment_of(digest(1)), nullptr);
  EXPECT_FALSE(plan_.has_name(names_.find(3)->name_digest));
}

TEST_F(PlanOfFour, EdgesHaveKinds) {
  ASSERT_EQ(plan_.apply(AddBucket{1, {1}}), Status());
  ASSERT_EQ(plan_.apply(AddBucket{2, {2}}), Status());
  ASSERT_EQ(plan_.apply(AddEdge{1, 2, EdgeKind::kSameSuperstep}), Status());
  ASSERT_EQ(plan_.apply(AddEdge{1, 1, EdgeKind::kNextSuperstep}), Status());
  const auto& successors = plan_.find(1)->successors;
  ASSERT_EQ(successors.size(), 2U);
  EXPECT_TRUE(successors[0].includes(EdgeKind::kSameSuperstep));
  EXPECT_FALSE(successors[0].includes(EdgeKind::kNextSuperstep));
  ASSERT_EQ(plan_.apply(AddEdge{1, 2, EdgeKind::kNextSuperstep}), Status());
  EXPECT_EQ(successors.size(), 2U);
  EXPECT_TRUE(successors[0].includes(EdgeKind::kSameSuperstep));
  EXPECT_TRUE(successors[0].includes(EdgeKind::kNextSuperstep));
  ASSERT_EQ(plan_.apply(DropFragment{2}), Status());
  ASSERT_EQ(successors.size(), 1U);
  EXPECT_EQ(successors[0].to, plan_.find(1));
}

TEST_F(PlanOfFour, ContradictoryEditsAreErrors) {
  ASSERT_EQ(plan_.apply(AddBucket{1, {1}}), Status());
  EXPECT_EQ(plan_.apply(AddBucket{1, {9}}),
            Status::stop("it plans the id 9, which has no signature"));
  EXPECT_EQ(plan_.apply(AddBucket{2, {1}}), Status::stop("it plans the id 1 a second time"));
  EXPECT_EQ(plan_.apply(AddBucket{2, {2, 2}}), Status::stop("it plans the id 2 a second time"));
  EXPECT_EQ(plan_.apply(DropFragment{2}),
            Status::stop("it drops the fragment 2, which does not exist"));
  const auto problem =
      Status::stop("it says that fragment 2 follows 1, but one of them does not exist");
  EXPECT_EQ(plan_.apply(AddEdge{1, 2, EdgeKind::kSameSuperstep}), problem);
}

}  // namespace
}  // namespace farandole
