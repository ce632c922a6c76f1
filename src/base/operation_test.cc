#include "farandole/operation.h"

#include <gtest/gtest.h>

#include <set>

namespace farandole {
namespace {

TEST(Operations, are_indexed_by_the_enum_and_have_unique_names) {
  std::set<std::string_view> names;
  for (std::size_t index = 0; index < kOperations.size(); ++index) {
    EXPECT_EQ(kOperations[index].operation, static_cast<Operation>(index));
    EXPECT_EQ(&row_of(kOperations[index].operation), &kOperations[index]);
    EXPECT_TRUE(names.insert(kOperations[index].name).second) << kOperations[index].name;
  }
  EXPECT_EQ(row_of(Operation::kBarrier).name, "barrier");
}

TEST(Operations, only_gathers_allow_different_first_dimensions) {
  for (const OperationRow& row : kOperations)
    EXPECT_EQ(row.shape_rule == ShapeRule::kAllButFirst,
              row.output_rule == OutputRule::kEngineMemory)
        << row.name;
}

TEST(ReduceOps, have_the_names_of_their_enumerators) {
  EXPECT_EQ(name_of(ReduceOp::kSum), "sum");
  EXPECT_EQ(name_of(ReduceOp::kAverage), "average");
  EXPECT_EQ(name_of(ReduceOp::kMin), "min");
  EXPECT_EQ(name_of(ReduceOp::kMax), "max");
  EXPECT_EQ(name_of(ReduceOp::kProduct), "product");
  EXPECT_EQ(name_of(ReduceOp::kAverageOfPresent), "average_of_present");
  EXPECT_EQ(name_of(ReduceOp::kAdasum), "adasum");
}

TEST(ReduceOps, only_allreduces_without_adasum_may_be_fused) {
  EXPECT_TRUE(may_be_fused(Operation::kAllreduce, ReduceOp::kSum));
  EXPECT_FALSE(may_be_fused(Operation::kAllreduce, ReduceOp::kAdasum));
  EXPECT_FALSE(may_be_fused(Operation::kReducescatter, ReduceOp::kSum));
}

}  // namespace
}  // namespace farandole
