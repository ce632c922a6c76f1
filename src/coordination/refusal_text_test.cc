#include "coordination/refusal_text.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "coordination/messages.h"

namespace farandole {
namespace {

using testing::HasSubstr;

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

// A refusal of `x`, from what differs to who has what.
std::string mismatch(const std::string& which, const std::string& values) {
  return which + " was submitted differently on different ranks: " + values +
         ". Submit the same on every rank, or give different tensors different names";
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
  EXPECT_EQ(refusal_text({{allreduce({}), {0}}, {other, {1}}}),
            mismatch("allreduce `x`",
                     "dtype, shape and reduce op differ. "
                     "rank 0: float32 [] reduce op sum; rank 1: int8 [4] reduce op max"));
  other.prescale = 0.5;
  other.postscale = 2;
  EXPECT_EQ(refusal_text({{allreduce({}), {0}}, {other, {1}}}),
            mismatch("allreduce `x`",
                     "dtype, shape, reduce op, prescale and postscale differ. "
                     "rank 0: float32 [] reduce op sum prescale 1 postscale 1; "
                     "rank 1: int8 [4] reduce op max prescale 0.5 postscale 2"));
}

TEST(RefusalText, Scales) {
  for (const auto operation : {Operation::kAllreduce, Operation::kReducescatter}) {
    const auto one = tensor(operation, DType::kFloat32, {8});
    const auto which = std::string(row_of(operation).name) + " `x`";
    auto two = one;
    two.prescale = 1.0 / 3;
    EXPECT_EQ(refusal_text({{one, {0, 2}}, {two, {1}}}),
              mismatch(which,
                       "the prescale differs. ranks 0, 2: float32 [8] prescale 1; "
                       "rank 1: float32 [8] prescale 0.3333333333333333"));
    two = one;
    two.postscale = 0.125;
    EXPECT_EQ(refusal_text({{one, {0}}, {two, {1}}}),
              mismatch(which,
                       "the postscale differs. rank 0: float32 [8] postscale 1; "
                       "rank 1: float32 [8] postscale 0.125"));
  }
}

// Whatever bits differ can be seen.
TEST(RefusalText, ScalesThatAreAlmostAlike) {
  auto one = allreduce({8});
  one.prescale = 0;
  one.postscale = 0.1;
  auto two = one;
  two.prescale = -0.0;
  two.postscale = std::nextafter(0.1, 1);
  EXPECT_EQ(refusal_text({{one, {0}}, {two, {1}}}),
            mismatch("allreduce `x`",
                     "prescale and postscale differ. "
                     "rank 0: float32 [8] prescale 0 postscale 0.1; "
                     "rank 1: float32 [8] prescale -0 postscale 0.10000000000000002"));
}

TEST(RefusalText, Roots) {
  const auto one = tensor(Operation::kBroadcast, DType::kBool, {1});
  auto two = one;
  two.root_rank = 5;
  EXPECT_EQ(refusal_text({{one, {0, 1}}, {two, {2}}}),
            mismatch("broadcast `x`",
                     "the root rank differs. ranks 0–1: bool [1] root rank 0; "
                     "rank 2: bool [1] root rank 5"));
}

TEST(RefusalText, Devices) {
  auto other = allreduce({8});
  other.device = DeviceType::kCuda;
  EXPECT_EQ(refusal_text({{allreduce({8}), {0, 2}}, {other, {1}}}),
            mismatch("allreduce `x`",
                     "the device differs. ranks 0, 2: float32 [8] cpu; rank 1: float32 [8] cuda"));
}

TEST(RefusalText, AReceivedTensorHasAFreeFirstDimension) {
  for (const auto operation : {Operation::kAllgather, Operation::kAlltoall}) {
    const auto one = tensor(operation, DType::kInt64, {7});
    const auto two = tensor(operation, DType::kInt64, {});
    EXPECT_EQ(refusal_text({{one, {0}}, {two, {1}}}),
              mismatch(std::string(row_of(operation).name) + " `x`",
                       "the shape differs. rank 0: int64 [*, 7]; rank 1: int64 [*]"));
  }
}

TEST(RefusalText, AReduceScatter) {
  const auto one = tensor(Operation::kReducescatter, DType::kInt64, {7, 2});
  auto two = tensor(Operation::kReducescatter, DType::kInt64, {8, 2});
  two.reduce_op = ReduceOp::kAverage;
  EXPECT_EQ(refusal_text({{one, {0}}, {two, {1}}}),
            mismatch("reducescatter `x`",
                     "shape and reduce op differ. rank 0: int64 [7, 2] reduce op sum; "
                     "rank 1: int64 [8, 2] reduce op average"));
}

TEST(RefusalText, AnotherOperationComesFirst) {
  const auto barrier = tensor(Operation::kBarrier, DType::kUInt8, {});
  auto averaged = allreduce({2});
  averaged.reduce_op = ReduceOp::kAverage;
  averaged.prescale = 2;
  auto broadcast = tensor(Operation::kBroadcast, DType::kInt8, {2});
  broadcast.root_rank = 1;
  EXPECT_EQ(refusal_text({{barrier, {0}}, {averaged, {1}}, {broadcast, {2}}}),
            mismatch("`x`",
                     "the operation differs. rank 0: barrier; "
                     "rank 1: allreduce float32 [2] reduce op average prescale 2; "
                     "rank 2: broadcast int8 [2] root rank 1"));
  EXPECT_EQ(refusal_text({{tensor(Operation::kAlltoall, DType::kBool, {3}), {0}},
                          {tensor(Operation::kReducescatter, DType::kBool, {3}), {1}}}),
            mismatch("`x`",
                     "the operation differs. rank 0: alltoall bool [*, 3]; "
                     "rank 1: reducescatter bool [3]"));
}

TEST(JoinedText, NamesTheJoinedRanksWhatGoesOnAndWhatToDo) {
  EXPECT_EQ(joined_text(tensor(Operation::kAlltoall, DType::kBool, {3}), {3}),
            "alltoall `x` cannot run: rank 3 has joined and has no more data; until all have "
            "joined, only allreduce goes on. Call alltoall before the first rank joins, or after "
            "join has returned");
  EXPECT_EQ(joined_text(tensor(Operation::kReducescatter, DType::kBool, {3}), {0, 5, 4}),
            "reducescatter `x` cannot run: ranks 0, 4–5 have joined and have no more data; until "
            "all have joined, only allreduce goes on. Call reducescatter before the first rank "
            "joins, or after join has returned");
}

TEST(JoinedText, StaysWithinItsBounds) {
  auto signature = tensor(Operation::kBarrier, DType::kUInt8, {});
  signature.name = std::string(kNameBytesMax, 'n');
  std::vector<int> ranks;
  for (int rank = 0; rank < 100'000; rank += 2) ranks.push_back(rank);
  const auto text = joined_text(signature, ranks);
  EXPECT_LT(text.size(), 1000U);
  EXPECT_THAT(text, HasSubstr("nnn…` cannot run: ranks 0, 2, 4"));
  EXPECT_THAT(text, HasSubstr("… have joined"));
}

TEST(RefusalText, ShowsEightVariants) {
  std::vector<Variant> variants;
  std::string shown;
  for (int rank = 0; rank < 9; ++rank) {
    variants.push_back({allreduce({rank}), {rank}});
    if (rank < 8) shown += fmt::format("{0}rank {1}: float32 [{1}]", rank > 0 ? "; " : "", rank);
  }
  EXPECT_EQ(refusal_text(variants),
            mismatch("allreduce `x`", "the shape differs. " + shown + "; and 1 more variant"));
  variants.push_back({allreduce({9}), {9}});
  EXPECT_EQ(refusal_text(variants),
            mismatch("allreduce `x`", "the shape differs. " + shown + "; and 2 more variants"));
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
