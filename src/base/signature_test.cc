#include "base/signature.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace farandole {
namespace {

Signature sample_signature() {
  Signature signature;
  signature.name = "w";
  signature.operation = Operation::kAllreduce;
  signature.dtype = DType::kFloat32;
  signature.dimensions = {2, 3};
  return signature;
}

TEST(Signature, EveryFieldChangesTheDigest) {
  const std::vector<std::function<void(Signature&)>> changes = {
      [](Signature& s) { s.name = "v"; },
      [](Signature& s) { s.operation = Operation::kBarrier; },
      [](Signature& s) { s.dtype = DType::kInt8; },
      [](Signature& s) { s.device = DeviceType::kCuda; },
      [](Signature& s) { s.reduce_op = ReduceOp::kMax; },
      [](Signature& s) { s.root_rank = 1; },
      [](Signature& s) { s.prescale = 0.5; },
      [](Signature& s) { s.postscale = 0.5; },
      [](Signature& s) { s.dimensions = {3, 2}; },
  };
  for (const auto& change : changes) {
    auto other_signature = sample_signature();
    change(other_signature);
    EXPECT_FALSE(other_signature == sample_signature());
    EXPECT_NE(digest_of(other_signature), digest_of(sample_signature()));
  }
  EXPECT_EQ(digest_of(sample_signature()), digest_of(sample_signature()));
}

TEST(Signature, ScalesAreComparedBitByBit) {
  auto zero = sample_signature();
  zero.prescale = 0;
  auto minus_zero = zero;
  minus_zero.prescale = -0.0;
  EXPECT_FALSE(zero == minus_zero);
  EXPECT_NE(digest_of(zero), digest_of(minus_zero));

  auto tenth = sample_signature();
  tenth.postscale = 0.1;
  auto next = tenth;
  next.postscale = std::nextafter(0.1, 1);
  EXPECT_FALSE(tenth == next);
  EXPECT_NE(digest_of(tenth), digest_of(next));
}

TEST(InternedSignature, HoldsTheDigestsAndTheSize) {
  const InternedSignature interned(sample_signature());
  EXPECT_EQ(interned.signature, sample_signature());
  EXPECT_EQ(interned.digest, digest_of(sample_signature()));
  EXPECT_EQ(interned.name_digest, digest_of(std::string_view("w")));
  EXPECT_EQ(interned.bytes, 24);
  EXPECT_EQ(interned.problem, "");
  auto invalid_signature = sample_signature();
  invalid_signature.dimensions = {-1};
  EXPECT_EQ(InternedSignature(invalid_signature).bytes, 0);
  EXPECT_EQ(InternedSignature(invalid_signature).problem, problem_of(invalid_signature));
}

TEST(Signature, AtItsLimitsIsValid) {
  EXPECT_EQ(problem_of(sample_signature()), "");
  auto widest = sample_signature();
  widest.name = std::string(kNameBytesMax, 'x');
  widest.dimensions = std::vector<std::int64_t>(kDimensionsMax, 0);
  widest.prescale = std::numeric_limits<double>::lowest();
  widest.postscale = std::numeric_limits<double>::denorm_min();
  EXPECT_EQ(problem_of(widest), "");
}

// Returns the problem of a valid signature after one change.
std::string problem_after(const std::function<void(Signature&)>& change) {
  auto signature = sample_signature();
  change(signature);
  return problem_of(signature);
}

TEST(Signature, BeyondItsLimitsHasAProblem) {
  EXPECT_EQ(problem_after([](Signature& s) { s.name.clear(); }), "the name is empty");
  EXPECT_EQ(problem_after([](Signature& s) { s.name = std::string(kNameBytesMax + 1, 'x'); }),
            "the name `" + std::string(77, 'x') + "…` has 4097 bytes, at most 4096 are allowed");
  EXPECT_EQ(problem_after([](Signature& s) { s.operation = static_cast<Operation>(200); }),
            "`w`: this number is not an operation (200)");
  EXPECT_EQ(problem_after([](Signature& s) { s.dtype = static_cast<DType>(99); }),
            "`w`: this number is not an element type (99)");
  EXPECT_EQ(problem_after([](Signature& s) { s.device = static_cast<DeviceType>(0); }),
            "`w`: this number is not a device (0)");
  EXPECT_EQ(problem_after([](Signature& s) { s.reduce_op = static_cast<ReduceOp>(99); }),
            "`w`: this number is not a reduction (99)");
  EXPECT_EQ(problem_after([](Signature& s) { s.dimensions.resize(kDimensionsMax + 1); }),
            "`w` has 65 dimensions, at most 64 are allowed");
  EXPECT_EQ(problem_after([](Signature& s) { s.dimensions = {3, -4}; }),
            "`w` has the shape [3, -4], which no tensor has");
}

TEST(Signature, InvalidOrUnusedScalesAreProblems) {
  constexpr auto kInfinity = std::numeric_limits<double>::infinity();
  constexpr auto kNaN = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(problem_after([](Signature& s) { s.prescale = -kInfinity; }),
            "allreduce `w`: the prescale is -inf; it must be finite");
  EXPECT_EQ(problem_after([](Signature& s) { s.postscale = kNaN; }),
            "allreduce `w`: the postscale is nan; it must be finite");
  for (const auto& row : kOperations) {
    auto signature = sample_signature();
    signature.operation = row.operation;
    EXPECT_EQ(problem_of(signature), "");
    const auto expected_problem = [&row](const std::string& scale) {
      return row.reduces ? ""
                         : std::string(row.name) + " `w`: the " + scale +
                               " is 0.5; without a reduction it must be 1";
    };
    signature.prescale = 0.5;
    EXPECT_EQ(problem_of(signature), expected_problem("prescale"));
    signature.prescale = 1;
    signature.postscale = 0.5;
    EXPECT_EQ(problem_of(signature), expected_problem("postscale"));
  }
}

TEST(ByteCount, IsEmptyForShapesThatNoTensorHas) {
  const auto bytes_of = [](std::vector<std::int64_t> shape) {
    return byte_count(DType::kFloat32, shape);
  };
  EXPECT_EQ(bytes_of({}), 4);
  EXPECT_EQ(bytes_of({3, 5}), 60);
  EXPECT_EQ(bytes_of({3, -1}), std::nullopt);
  EXPECT_EQ(bytes_of({std::int64_t{1} << 59}), std::int64_t{1} << 61);
  EXPECT_EQ(bytes_of({std::int64_t{1} << 60}), std::nullopt);
  // In 64 bits this product is 0.
  EXPECT_EQ(bytes_of({std::int64_t{1} << 31, std::int64_t{1} << 31}), std::nullopt);
  EXPECT_EQ(bytes_of({std::int64_t{1} << 59, 0}), 0);
  EXPECT_EQ(bytes_of({std::int64_t{1} << 60, 0}), std::nullopt);
}

TEST(Shortened, CutsBetweenCharacters) {
  EXPECT_EQ(shortened("abc", 3), "abc");
  EXPECT_EQ(shortened("abcdef", 5), "ab…");
  EXPECT_EQ(shortened("aéééé", 7), "aé…");
  for (std::size_t bytes = 3; bytes < 12; ++bytes) {
    const auto short_text = shortened("éééééééé", bytes);
    EXPECT_LE(short_text.size(), bytes);
    EXPECT_EQ((short_text.size() - 3) % 2, 0U);
  }
}

}  // namespace
}  // namespace farandole
