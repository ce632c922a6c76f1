// The reference computes one element at a time by the rules of the header, in wider types where
// that matters, and shares nothing with the kernels but the half formats (tested on their own).
#include "device/cpu/reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "device/cpu/half.h"

namespace farandole {
namespace {

using Buffer = std::vector<std::byte>;

constexpr std::array kAllOps = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax,
                                ReduceOp::kProduct};

template <class T>
T read_as(const Buffer& buffer, std::size_t index) {
  T value;
  std::memcpy(&value, buffer.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void write_as(Buffer& buffer, std::size_t index, T value) {
  std::memcpy(buffer.data() + index * sizeof(T), &value, sizeof(T));
}

__extension__ using Int128 = __int128;

// Integers: exact in 128 bits for sums and comparisons; products wrap in 64.
template <class T>
T reference_integer(ReduceOp op, const std::vector<T>& values) {
  Int128 sum = 0;
  std::uint64_t product = 1;
  for (const T value : values) {
    sum += value;
    product *= static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
  }
  const auto wrapped = static_cast<std::int64_t>(static_cast<std::uint64_t>(sum));
  switch (op) {
    case ReduceOp::kSum:
      return static_cast<T>(static_cast<std::uint64_t>(sum));
    case ReduceOp::kAverage:
      return static_cast<T>(wrapped / static_cast<std::int64_t>(values.size()));
    case ReduceOp::kMin:
      return *std::ranges::min_element(values);
    case ReduceOp::kMax:
      return *std::ranges::max_element(values);
    case ReduceOp::kProduct:
      return static_cast<T>(product);
  }
  return {};
}

// Floats: in the accumulator type, in rank order.
template <class T>
T reference_float(ReduceOp op, const std::vector<T>& values) {
  T result = values[0];
  for (std::size_t rank = 1; rank < values.size(); ++rank) {
    const T value = values[rank];
    if (op == ReduceOp::kSum || op == ReduceOp::kAverage) result += value;
    if (op == ReduceOp::kProduct) result *= value;
    if (std::isnan(result)) continue;
    if (op == ReduceOp::kMin && (std::isnan(value) || value < result)) result = value;
    if (op == ReduceOp::kMax && (std::isnan(value) || value > result)) result = value;
  }
  return op == ReduceOp::kAverage ? result / static_cast<T>(values.size()) : result;
}

template <class T>
std::vector<T> column(const std::vector<Buffer>& inputs, std::size_t index) {
  std::vector<T> values;
  for (const Buffer& input : inputs) values.push_back(read_as<T>(input, index));
  return values;
}

template <class Half>
std::vector<float> widened(const std::vector<Half>& values) {
  std::vector<float> wide;
  for (const Half value : values) wide.push_back(to_float(value));
  return wide;
}

bool reference_bool(ReduceOp op, const std::vector<std::uint8_t>& values) {
  const auto is_true = [](std::uint8_t value) { return value != 0; };
  return op == ReduceOp::kSum || op == ReduceOp::kMax ? std::ranges::any_of(values, is_true)
                                                      : std::ranges::all_of(values, is_true);
}

void reference_element(DType dtype, ReduceOp op, const std::vector<Buffer>& inputs,
                       std::size_t index, Buffer& expected) {
  const auto integer = [&]<class T>(T) {
    write_as(expected, index, reference_integer(op, column<T>(inputs, index)));
  };
  switch (dtype) {
    case DType::kBool:
      return write_as(expected, index, reference_bool(op, column<std::uint8_t>(inputs, index)));
    case DType::kInt8:
      return integer(std::int8_t{});
    case DType::kUInt8:
      return integer(std::uint8_t{});
    case DType::kInt16:
      return integer(std::int16_t{});
    case DType::kUInt16:
      return integer(std::uint16_t{});
    case DType::kInt32:
      return integer(std::int32_t{});
    case DType::kInt64:
      return integer(std::int64_t{});
    case DType::kFloat16:
      return write_as(expected, index,
                      to_float16(reference_float(op, widened(column<Float16>(inputs, index)))));
    case DType::kBFloat16:
      return write_as(expected, index,
                      to_bfloat16(reference_float(op, widened(column<BFloat16>(inputs, index)))));
    case DType::kFloat32:
      return write_as(expected, index, reference_float(op, column<float>(inputs, index)));
    case DType::kFloat64:
      return write_as(expected, index, reference_float(op, column<double>(inputs, index)));
  }
}

bool is_nan(DType dtype, const Buffer& buffer, std::size_t index) {
  switch (dtype) {
    case DType::kFloat16:
      return std::isnan(to_float(read_as<Float16>(buffer, index)));
    case DType::kBFloat16:
      return std::isnan(to_float(read_as<BFloat16>(buffer, index)));
    case DType::kFloat32:
      return std::isnan(read_as<float>(buffer, index));
    case DType::kFloat64:
      return std::isnan(read_as<double>(buffer, index));
    default:
      return false;
  }
}

// Random bits: they hold infinities, NaNs, subnormals and the extremes of the integers.
std::vector<Buffer> random_inputs(int inputs, std::size_t bytes) {
  std::mt19937 random(static_cast<unsigned>(bytes) * 8 + static_cast<unsigned>(inputs));
  std::vector<Buffer> buffers(static_cast<std::size_t>(inputs), Buffer(bytes));
  for (Buffer& buffer : buffers)
    for (std::byte& byte : buffer) byte = static_cast<std::byte>(random());
  return buffers;
}

void expect_equal(DType dtype, const Buffer& actual, const Buffer& expected) {
  const std::size_t bytes = row_of(dtype).bytes;
  for (std::size_t index = 0; index < expected.size() / bytes; ++index) {
    if (is_nan(dtype, expected, index)) {
      ASSERT_TRUE(is_nan(dtype, actual, index)) << "element " << index;
    } else {
      ASSERT_EQ(std::memcmp(&actual[index * bytes], &expected[index * bytes], bytes), 0)
          << "element " << index;
    }
  }
}

class Reduce : public ::testing::TestWithParam<std::tuple<DTypeRow, ReduceOp>> {};

TEST_P(Reduce, equals_the_reference) {
  const auto& [row, op] = GetParam();
  if (!check_reduction(row.dtype, op).ok()) return;
  for (const int inputs : {1, 2, 3, 8}) {
    for (const std::size_t count : {0U, 1U, 7U, 1023U, 1024U, 1025U, 3000U}) {
      const std::vector<Buffer> buffers = random_inputs(inputs, count * row.bytes);
      Buffer expected(count * row.bytes);
      for (std::size_t index = 0; index < count; ++index)
        reference_element(row.dtype, op, buffers, index, expected);

      std::vector<const std::byte*> pointers;
      for (const Buffer& buffer : buffers) pointers.push_back(buffer.data());
      Buffer first(count * row.bytes);
      Buffer second(count * row.bytes);
      const std::array outputs = {first.data(), second.data()};
      reduce({.dtype = row.dtype, .op = op, .divisor = inputs}, pointers, outputs,
             static_cast<std::int64_t>(count));
      SCOPED_TRACE(testing::Message() << inputs << " inputs, " << count << " elements");
      expect_equal(row.dtype, first, expected);
      EXPECT_EQ(first, second);
    }
  }
}

TEST_P(Reduce, an_output_may_be_an_input_and_need_not_be_aligned) {
  const auto& [row, op] = GetParam();
  if (!check_reduction(row.dtype, op).ok()) return;
  constexpr std::size_t kCount = 2500;
  const std::size_t bytes = kCount * row.bytes;
  std::vector<Buffer> buffers = random_inputs(3, bytes + 1);
  std::vector<const std::byte*> pointers;
  for (const Buffer& buffer : buffers) pointers.push_back(buffer.data() + 1);
  Buffer expected(bytes);
  const std::array apart = {expected.data()};
  const Reduction reduction = {.dtype = row.dtype, .op = op, .divisor = 3};
  reduce(reduction, pointers, apart, kCount);
  const std::array in_place = {buffers[1].data() + 1};
  reduce(reduction, pointers, in_place, kCount);
  EXPECT_EQ(std::memcmp(buffers[1].data() + 1, expected.data(), bytes), 0);
}

std::string test_name(const ::testing::TestParamInfo<std::tuple<DTypeRow, ReduceOp>>& info) {
  const auto& [row, op] = info.param;
  return std::string(row.name) + "_" + std::string(name_of(op));
}

INSTANTIATE_TEST_SUITE_P(All, Reduce,
                         ::testing::Combine(::testing::ValuesIn(kDTypes),
                                            ::testing::ValuesIn(kAllOps)),
                         test_name);

template <class T>
T reduced(DType dtype, ReduceOp op, const std::vector<T>& values) {
  std::vector<const std::byte*> inputs;
  for (const T& value : values) inputs.push_back(reinterpret_cast<const std::byte*>(&value));
  T result{};
  const std::array outputs = {reinterpret_cast<std::byte*>(&result)};
  reduce({.dtype = dtype, .op = op, .divisor = static_cast<int>(values.size())}, inputs, outputs,
         1);
  return result;
}

TEST(ReduceRules, halves_are_rounded_once) {
  // 2048 + 1 rounds back to 2048 in float16; the sum of all four is 2051, which rounds to 2052.
  std::vector<Float16> values = {to_float16(2048), to_float16(1), to_float16(1), to_float16(1)};
  EXPECT_EQ(to_float(reduced(DType::kFloat16, ReduceOp::kSum, values)), 2052.0F);
}

TEST(ReduceRules, integers_wrap_and_averages_do_not_overflow) {
  constexpr std::int8_t kMost = std::numeric_limits<std::int8_t>::max();
  EXPECT_EQ(reduced<std::int8_t>(DType::kInt8, ReduceOp::kSum, {kMost, 1}), -128);
  EXPECT_EQ(reduced<std::int8_t>(DType::kInt8, ReduceOp::kAverage, {kMost, kMost}), kMost);
  constexpr std::uint16_t kLarge = 0xffff;
  EXPECT_EQ(reduced<std::uint16_t>(DType::kUInt16, ReduceOp::kProduct, {kLarge, kLarge}), 1);
  EXPECT_EQ(reduced<std::uint16_t>(DType::kUInt16, ReduceOp::kAverage, {kLarge, kLarge}), kLarge);
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(reduced<std::int64_t>(DType::kInt64, ReduceOp::kAverage, {kHuge, 1}),
            std::numeric_limits<std::int64_t>::min() / 2);
}

TEST(ReduceRules, averages_of_integers_go_toward_zero) {
  EXPECT_EQ(reduced<std::int32_t>(DType::kInt32, ReduceOp::kAverage, {-3, -4}), -3);
  EXPECT_EQ(reduced<std::int32_t>(DType::kInt32, ReduceOp::kAverage, {3, 4}), 3);
}

TEST(ReduceRules, a_nan_anywhere_makes_min_and_max_nan) {
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    EXPECT_TRUE(std::isnan(reduced<float>(DType::kFloat32, op, {NAN, 1, 2})));
    EXPECT_TRUE(std::isnan(reduced<float>(DType::kFloat32, op, {1, NAN, 2})));
    EXPECT_TRUE(std::isnan(reduced<double>(DType::kFloat64, op, {1, 2, NAN})));
  }
}

TEST(ReduceRules, any_non_zero_byte_is_true) {
  EXPECT_EQ(reduced<std::uint8_t>(DType::kBool, ReduceOp::kSum, {0, 2}), 1);
  EXPECT_EQ(reduced<std::uint8_t>(DType::kBool, ReduceOp::kMin, {4, 2}), 1);
  EXPECT_EQ(reduced<std::uint8_t>(DType::kBool, ReduceOp::kProduct, {1, 0}), 0);
}

TEST(CheckReduction, refuses_only_the_average_of_bool) {
  for (const DTypeRow& row : kDTypes) {
    for (const ReduceOp op : kAllOps) {
      const Status status = check_reduction(row.dtype, op);
      const bool refused = row.dtype == DType::kBool && op == ReduceOp::kAverage;
      EXPECT_EQ(status.ok(), !refused) << row.name << " " << name_of(op);
      if (!refused) continue;
      EXPECT_EQ(status.code(), StatusCode::kFixCall);
      EXPECT_THAT(status.message(), ::testing::HasSubstr("average of bool"));
    }
  }
}

}  // namespace
}  // namespace farandole
