#include "coordination/signature.h"

#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <vector>

namespace farandole {
namespace {

using testing::HasSubstr;

Signature sample() {
  Signature signature;
  signature.name = "w";
  signature.operation = Operation::kAllreduce;
  signature.dtype = DType::kFloat32;
  signature.dimensions = {2, 3};
  return signature;
}

TEST(Signature, EveryPartCounts) {
  const std::vector<std::function<void(Signature&)>> changes = {
      [](Signature& s) { s.name = "v"; },
      [](Signature& s) { s.operation = Operation::kBarrier; },
      [](Signature& s) { s.dtype = DType::kInt8; },
      [](Signature& s) { s.reduce_op = ReduceOp::kMax; },
      [](Signature& s) { s.root_rank = 1; },
      [](Signature& s) { s.dimensions = {3, 2}; },
  };
  for (const auto& change : changes) {
    auto other = sample();
    change(other);
    EXPECT_FALSE(other == sample());
  }
  EXPECT_EQ(SignatureHash()(sample()), SignatureHash()(sample()));
}

TEST(Signature, Bounds) {
  EXPECT_EQ(problem_of(sample()), "");
  auto widest = sample();
  widest.name = std::string(kNameBytesMax, 'x');
  widest.dimensions = std::vector<std::int64_t>(kDimensionsMax, 0);
  EXPECT_EQ(problem_of(widest), "");

  auto wrong = sample();
  wrong.name += std::string(kNameBytesMax, 'x');
  EXPECT_THAT(problem_of(wrong), HasSubstr("has 4097 bytes, at most 4096"));
  EXPECT_LT(problem_of(wrong).size(), 300U);
  wrong = sample();
  wrong.operation = static_cast<Operation>(200);
  EXPECT_THAT(problem_of(wrong), HasSubstr("`w`: this number is no operation (200)"));
  wrong = sample();
  wrong.reduce_op = static_cast<ReduceOp>(5);
  EXPECT_THAT(problem_of(wrong), HasSubstr("no reduction (5)"));
}

TEST(Shortened, CutsBetweenCharacters) {
  EXPECT_EQ(shortened("abc", 3), "abc");
  EXPECT_EQ(shortened("abcdef", 5), "ab…");
  EXPECT_EQ(shortened("aéééé", 7), "aé…");
  for (std::size_t bytes = 3; bytes < 12; ++bytes) {
    const auto cut = shortened("éééééééé", bytes);
    EXPECT_LE(cut.size(), bytes);
    EXPECT_EQ((cut.size() - 3) % 2, 0U);
  }
}

}  // namespace
}  // namespace farandole
