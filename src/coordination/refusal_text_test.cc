#include "coordination/refusal_text.h"

#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "coordination/messages.h"

namespace farandole {
namespace {

using testing::HasSubstr;
using testing::Not;

Signature tensor(Operation operation, DType dtype, std::vector<std::int64_t> dimensions) {
  Signature signature;
  signature.name = "x";
  signature.operation = operation;
  signature.dtype = dtype;
  signature.dimensions = std::move(dimensions);
  return signature;
}

Signature allreduce(std::vector<std::int64_t> dimensions) {
  return tensor(Operation::kAllreduce, DType::kFloat32, std::move(dimensions));
}

TEST(RankList, JoinsNeighbours) {
  EXPECT_EQ(rank_list({4}), "rank 4");
  EXPECT_EQ(rank_list({1, 0}), "ranks 0–1");
  EXPECT_EQ(rank_list({0, 2, 3, 4, 9}), "ranks 0, 2–4, 9");
}

TEST(RefusalText, NamesTheTensorTheDifferenceAndWhoHasWhat) {
  auto wide = tensor(Operation::kAllreduce, DType::kFloat64, {10, 3});
  EXPECT_EQ(refusal_text({{wide, {1}}, {allreduce({10, 3}), {3, 2, 0}}}),
            "allreduce `x` was submitted differently on different ranks: the dtype differs. "
            "ranks 0, 2–3: float32 [10, 3]; rank 1: float64 [10, 3]. "
            "Submit the same on every rank, or give different tensors different names");
}

TEST(RefusalText, SaysAllThatDiffers) {
  auto other = tensor(Operation::kAllreduce, DType::kInt8, {4});
  other.reduce_op = ReduceOp::kMax;
  const auto text = refusal_text({{allreduce({}), {0}}, {other, {1}}});
  EXPECT_THAT(text, HasSubstr("dtype, shape and reduce op differ. "));
  EXPECT_THAT(text, HasSubstr("rank 0: float32 [] reduce op sum; rank 1: int8 [4] reduce op max"));
}

TEST(RefusalText, Roots) {
  const auto one = tensor(Operation::kBroadcast, DType::kBool, {1});
  auto two = one;
  two.root_rank = 5;
  EXPECT_THAT(refusal_text({{one, {0, 1}}, {two, {2}}}),
              HasSubstr("the root rank differs. ranks 0–1: bool [1] root rank 0; "
                        "rank 2: bool [1] root rank 5"));
}

TEST(RefusalText, AGatheredTensorHasAFreeFirstDimension) {
  const auto one = tensor(Operation::kAllgather, DType::kInt64, {7});
  const auto two = tensor(Operation::kAllgather, DType::kInt64, {});
  EXPECT_THAT(refusal_text({{one, {0}}, {two, {1}}}),
              HasSubstr("the shape differs. rank 0: int64 [*, 7]; rank 1: int64 [*]"));
}

TEST(RefusalText, AnotherOperationComesFirst) {
  const auto barrier = tensor(Operation::kBarrier, DType::kUInt8, {});
  const auto text = refusal_text({{barrier, {0}}, {allreduce({2}), {1}}});
  EXPECT_THAT(text, HasSubstr("`x` was submitted differently on different ranks: "
                              "the operation differs. "
                              "rank 0: barrier; rank 1: allreduce float32 [2]"));
  EXPECT_THAT(text, Not(HasSubstr("barrier `x`")));
}

TEST(RefusalText, StaysWithinItsBounds) {
  std::vector<Variant> variants;
  for (int rank = 0; rank < 64; ++rank) {
    variants.push_back({allreduce(std::vector<std::int64_t>(64, 1'000'000'000 + rank)), {rank}});
    variants.back().signature.name = std::string(kNameBytesMax, 'n');
  }
  const auto text = refusal_text(variants);
  EXPECT_LE(text.size(), kRefusalTextBytesMax);
  EXPECT_THAT(text, HasSubstr("rank 7: "));
  EXPECT_THAT(text, HasSubstr("; and 56 more variants. Submit the same"));
}

TEST(RefusalText, EvenManyLoneRanksFit) {
  std::vector<Variant> variants(2);
  for (int rank = 0; rank < 100'000; ++rank)
    variants[static_cast<std::size_t>(rank % 2)].ranks.push_back(rank);
  variants[0].signature = allreduce({1});
  variants[1].signature = allreduce({2});
  const auto text = refusal_text(variants);
  EXPECT_LE(text.size(), kRefusalTextBytesMax);
  EXPECT_THAT(text, HasSubstr("ranks 1, 3, 5"));
}

}  // namespace
}  // namespace farandole
