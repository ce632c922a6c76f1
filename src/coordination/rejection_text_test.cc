#include "coordination/rejection_text.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "control/messages.h"

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

Signature allreduce_x(std::vector<std::int64_t> dimensions) {
  return tensor(Operation::kAllreduce, DType::kFloat32, std::move(dimensions));
}

// Returns the error text of the call `call_title`, for example "allreduce `x`". The lines of
// `table` come without their indentation.
std::string expected_mismatch(const std::string& call_title, const std::string& differing,
                              const std::vector<std::string>& table) {
  return call_title + " was submitted differently on different ranks: " + differing + "\n  " +
         join_text(table, "\n  ") +
         "\nSubmit the same on every rank, or give different tensors different names";
}

std::vector<int> ranks_without(int rank_count, const std::vector<int>& excluded_ranks) {
  std::vector<int> remaining_ranks;
  for (int rank = 0; rank < rank_count; ++rank)
    if (std::ranges::find(excluded_ranks, rank) == excluded_ranks.end())
      remaining_ranks.push_back(rank);
  return remaining_ranks;
}

// The next tests show whole texts for 2, 4 and 64 ranks.

TEST(RejectionText, ShowsTheValuesOfTwoRanks) {
  EXPECT_EQ(mismatch_text({{tensor(Operation::kAllreduce, DType::kFloat64, {10, 3}), {1}},
                           {allreduce_x({10, 3}), {0}}}),
            "allreduce `x` was submitted differently on different ranks: the dtype differs\n"
            "           dtype     shape\n"
            "  rank 0   float32   [10, 3]\n"
            "  rank 1   float64   [10, 3]\n"
            "Submit the same on every rank, or give different tensors different names");
}

TEST(RejectionText, NamesTheRankThatDiffersFromThreeOthers) {
  auto other = tensor(Operation::kAllreduce, DType::kBFloat16, {10, 128});
  other.reduce_op = ReduceOp::kAverage;
  EXPECT_EQ(mismatch_text({{other, {1}}, {allreduce_x({10, 3}), {3, 2, 0}}}),
            "allreduce `x` was submitted differently on different ranks: dtype, reduce op and "
            "shape differ; rank 1 differs from the others\n"
            "                  dtype      reduce op   shape\n"
            "  ranks 0, 2, 3   float32    sum         [10, 3]\n"
            "  rank 1          bfloat16   average     [10, 128]\n"
            "Submit the same on every rank, or give different tensors different names");
}

TEST(RejectionText, ShowsRangesOfRanks) {
  auto halved = allreduce_x({4096, 1024});
  halved.prescale = 0.5;
  auto on_device = allreduce_x({4096, 1024});
  on_device.device = DeviceType::kCuda;
  EXPECT_EQ(mismatch_text({{allreduce_x({4096, 1024}), ranks_without(64, {9, 40, 41, 42})},
                           {on_device, {9}},
                           {halved, {40, 41, 42}}}),
            "allreduce `x` was submitted differently on different ranks: device and prescale "
            "differ; ranks 9, 40-42 differ from the others\n"
            "                            dtype     device   prescale   shape\n"
            "  ranks 0-8, 10-39, 43-63   float32   cpu      1          [4096, 1024]\n"
            "  ranks 40-42               float32   cpu      0.5        [4096, 1024]\n"
            "  rank 9                    float32   cuda     1          [4096, 1024]\n"
            "Submit the same on every rank, or give different tensors different names");
}

TEST(RejectionText, ShowsOnlySomeOfSixtyFourVariants) {
  std::vector<Variant> variants;
  for (int rank = 0; rank < 64; ++rank) variants.push_back({allreduce_x({rank + 5}), {rank}});
  EXPECT_EQ(mismatch_text(variants),
            expected_mismatch(
                "allreduce `x`", "the shape differs",
                {"         dtype     shape", "rank 0   float32   [5]", "rank 1   float32   [6]",
                 "rank 2   float32   [7]", "rank 3   float32   [8]", "rank 4   float32   [9]",
                 "rank 5   float32   [10]", "rank 6   float32   [11]", "rank 7   float32   [12]",
                 "and 56 more variants: ranks 8-63"}));
  variants.resize(9);
  EXPECT_THAT(mismatch_text(variants), HasSubstr("[12]\n  and 1 more variant: rank 8\nSubmit"));
}

TEST(RejectionText, ShortensTheListOfEverySecondRank) {
  std::vector<int> even_ranks;
  std::vector<int> odd_ranks;
  for (int rank = 0; rank < 64; ++rank) (rank % 2 == 0 ? even_ranks : odd_ranks).push_back(rank);
  EXPECT_EQ(mismatch_text({{allreduce_x({1}), odd_ranks}, {allreduce_x({2}), even_ranks}}),
            expected_mismatch(
                "allreduce `x`", "the shape differs",
                {std::string(60, ' ') + "dtype     shape",
                 "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, … (32 ranks)   float32   [2]",
                 "ranks 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, … (32 ranks)   float32   [1]"}));
}

// Each of the next tests varies one property.

TEST(RejectionText, ShowsScales) {
  for (const auto operation : {Operation::kAllreduce, Operation::kReducescatter}) {
    const auto original = tensor(operation, DType::kFloat32, {8});
    const auto call_title = std::string(row_of(operation).name) + " `x`";
    auto changed = original;
    changed.prescale = 1.0 / 3;
    EXPECT_EQ(mismatch_text({{original, {0, 2}}, {changed, {1}}}),
              expected_mismatch(call_title, "the prescale differs; rank 1 differs from the others",
                                {"             dtype     prescale             shape",
                                 "ranks 0, 2   float32   1                    [8]",
                                 "rank 1       float32   0.3333333333333333   [8]"}));
    changed = original;
    changed.postscale = 0.125;
    EXPECT_EQ(mismatch_text({{original, {0}}, {changed, {1}}}),
              expected_mismatch(call_title, "the postscale differs",
                                {"         dtype     postscale   shape",  //
                                 "rank 0   float32   1           [8]",    //
                                 "rank 1   float32   0.125       [8]"}));
  }
}

TEST(CallErrorText, NamesTheRanksOfEachError) {
  const Signature valid_call = allreduce_x({8});
  const auto invalid_call = [](const std::string& call_error) {
    return Signature{.name = "x", .dimensions = {}, .call_error = call_error};
  };
  EXPECT_EQ(call_error_text({{valid_call, {0}}, {invalid_call("`x` got 3 splits"), {1}}}),
            "rank 1: `x` got 3 splits");
  EXPECT_EQ(
      call_error_text(
          {{invalid_call("it is late"), {5}}, {valid_call, {3}}, {invalid_call("no"), {4, 0, 1}}}),
      "ranks 0, 1, 4: no\nrank 5: it is late");
  std::vector<Variant> many_variants;
  for (int rank = 6; rank >= 0; --rank)
    many_variants.push_back(
        {invalid_call(std::string(kCallErrorBytesMax, static_cast<char>('a' + rank))), {rank}});
  const auto text = call_error_text(many_variants);
  EXPECT_THAT(text, testing::StartsWith("rank 0: aaa"));
  EXPECT_THAT(text, testing::EndsWith("ddd\nsimilar problems on ranks 4-6"));
  EXPECT_LE(text.size(), kRejectionTextBytesMax);
}

// A difference in a single bit must be visible.
TEST(RejectionText, ShowsScalesThatDifferInOneBit) {
  auto original = allreduce_x({8});
  original.prescale = 0;
  original.postscale = 0.1;
  auto changed = original;
  changed.prescale = -0.0;
  changed.postscale = std::nextafter(0.1, 1);
  EXPECT_EQ(mismatch_text({{original, {0}}, {changed, {1}}}),
            expected_mismatch("allreduce `x`", "prescale and postscale differ",
                              {"         dtype     prescale   postscale             shape",
                               "rank 0   float32   0          0.1                   [8]",
                               "rank 1   float32   -0         0.10000000000000002   [8]"}));
}

TEST(RejectionText, ShowsRootRanks) {
  const auto original = tensor(Operation::kBroadcast, DType::kBool, {1});
  auto changed = original;
  changed.root_rank = 5;
  EXPECT_EQ(
      mismatch_text({{original, {0, 1}}, {changed, {2}}}),
      expected_mismatch("broadcast `x`", "the root rank differs; rank 2 differs from the others",
                        {"             dtype   root rank   shape",  //
                         "ranks 0, 1   bool    0           [1]",    //
                         "rank 2       bool    5           [1]"}));
}

TEST(RejectionText, ShowsDevices) {
  auto other = allreduce_x({8});
  other.device = DeviceType::kCuda;
  EXPECT_EQ(mismatch_text({{allreduce_x({8}), {0, 2}}, {other, {1}}}),
            expected_mismatch("allreduce `x`", "the device differs; rank 1 differs from the others",
                              {"             dtype     device   shape",  //
                               "ranks 0, 2   float32   cpu      [8]",    //
                               "rank 1       float32   cuda     [8]"}));
}

TEST(RejectionText, TheFirstDimensionOfAGatheredTensorIsShownAsAStar) {
  for (const auto operation : {Operation::kAllgather, Operation::kAlltoall}) {
    const auto original = tensor(operation, DType::kInt64, {7});
    const auto changed = tensor(operation, DType::kInt64, {});
    EXPECT_EQ(mismatch_text({{original, {0}}, {changed, {1}}}),
              expected_mismatch(std::string(row_of(operation).name) + " `x`", "the shape differs",
                                {"         dtype   shape",   //
                                 "rank 0   int64   [*, 7]",  //
                                 "rank 1   int64   [*]"}));
  }
}

TEST(RejectionText, IfOperationsDifferNothingElseIsNamed) {
  const auto barrier = tensor(Operation::kBarrier, DType::kUInt8, {});
  auto averaged = allreduce_x({2});
  averaged.reduce_op = ReduceOp::kAverage;
  averaged.prescale = 2;
  auto broadcast = tensor(Operation::kBroadcast, DType::kInt8, {2});
  broadcast.root_rank = 1;
  EXPECT_EQ(
      mismatch_text({{barrier, {0}}, {averaged, {1}}, {broadcast, {2}}}),
      expected_mismatch("`x`", "the operation differs",
                        {"         operation   dtype     reduce op   root rank   prescale   shape",
                         "rank 0   barrier     -         -           -           -          -",
                         "rank 1   allreduce   float32   average     -           2          [2]",
                         "rank 2   broadcast   int8      -           1           -          [2]"}));
  EXPECT_EQ(mismatch_text({{tensor(Operation::kAlltoall, DType::kBool, {3}), {0}},
                           {tensor(Operation::kReducescatter, DType::kBool, {3}), {1}}}),
            expected_mismatch("`x`", "the operation differs",
                              {"         operation       dtype   shape",   //
                               "rank 0   alltoall        bool    [*, 3]",  //
                               "rank 1   reducescatter   bool    [3]"}));
}

TEST(RejectionText, StaysWithinItsBounds) {
  std::vector<Variant> variants;
  for (int rank = 0; rank < 64; ++rank) {
    variants.push_back({allreduce_x(std::vector<std::int64_t>(64, 1'000'000'000 + rank)), {rank}});
    auto& signature = variants.back().signature;
    signature.name = std::string(kNameBytesMax, 'n');
    signature.prescale = -1.0 / 3 * (rank + 1);
    signature.postscale = 1e-300 / (rank + 1);
    signature.reduce_op = rank % 2 == 0 ? ReduceOp::kAverage : ReduceOp::kProduct;
  }
  const auto text = mismatch_text(variants);
  EXPECT_LE(text.size(), kRejectionTextBytesMax);
  EXPECT_THAT(text, HasSubstr("nnn…` was submitted"));
  EXPECT_THAT(text, HasSubstr("\n  rank 7   float32   "));
  EXPECT_THAT(text, HasSubstr("000…\n  and 56 more variants: ranks 8-63\nSubmit the same"));
}

TEST(RejectionText, LongRankListsAreShortened) {
  std::vector<Variant> variants(2);
  for (int rank = 0; rank < 100'000; ++rank)
    variants[static_cast<std::size_t>(rank % 2)].ranks.push_back(rank);
  variants[0].signature = allreduce_x({1});
  variants[1].signature = allreduce_x({2});
  const auto text = mismatch_text(variants);
  EXPECT_LE(text.size(), 500U);
  EXPECT_THAT(text,
              HasSubstr("  ranks 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, … (50000 ranks)   float32"));
}

TEST(UnnamedText, ShowsWhichCallEachRankHasSubmittedUnderTheName) {
  auto signature = tensor(Operation::kAllreduce, DType::kBool, {3});
  signature.name = "allreduce.noname.0";
  EXPECT_EQ(unnamed_text(signature, {{101, {2, 0}}, {105, {1}}}),
            "allreduce `allreduce.noname.0` is not the same call on all ranks: among the unnamed "
            "allreduce calls, it is number 101 on ranks 0, 2; number 105 on rank 1. The engine "
            "numbers such names from 0 again after the program has waited for the results of all "
            "of these calls, and the ranks have not done so before the same call. Give these calls "
            "names, or wait for the same number of results on every rank before each of them");
  RanksByNumber many;
  for (std::uint32_t rank = 0; rank < 100'000; ++rank)
    many[rank + 1].push_back(static_cast<int>(rank));
  const auto text = unnamed_text(signature, many);
  EXPECT_LT(text.size(), 1000U);
  EXPECT_THAT(text, HasSubstr("number 8 on rank 7 … (99992 more numbers). The"));
}

TEST(JoinedText, NamesTheJoinedRanksTheOperationsThatRunAndWhatToDo) {
  EXPECT_EQ(joined_text(tensor(Operation::kAlltoall, DType::kBool, {3}), {3}),
            "alltoall `x` cannot run: rank 3 has joined and has no more data; until all have "
            "joined, only allreduce and allgather can be called. Call alltoall before the first "
            "rank joins, or after join has returned");
  EXPECT_EQ(
      joined_text(tensor(Operation::kReducescatter, DType::kBool, {3}), {0, 5, 4}),
      "reducescatter `x` cannot run: ranks 0, 4, 5 have joined and have no more data; until "
      "all have joined, only allreduce and allgather can be called. Call reducescatter before "
      "the first rank joins, or after join has returned");
}

TEST(JoinedText, StaysWithinItsBounds) {
  auto signature = tensor(Operation::kBarrier, DType::kUInt8, {});
  signature.name = std::string(kNameBytesMax, 'n');
  std::vector<int> ranks;
  for (int rank = 0; rank < 100'000; rank += 2) ranks.push_back(rank);
  const auto text = joined_text(signature, ranks);
  EXPECT_LT(text.size(), 1000U);
  EXPECT_THAT(text, HasSubstr("nnn…` cannot run: ranks 0, 2, 4"));
  EXPECT_THAT(text, HasSubstr(", … (50000 ranks) have joined"));
}

}  // namespace
}  // namespace farandole
