// These tests compare the kernels with a reference. The reference computes one element at a time by
// the rules in reduce.h. It uses wider types wherever a narrower type could change the result. It
// shares only half.h with the kernels, and half_test.cc tests that header.
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

#include "device/cpu/float_mode.h"
#include "device/cpu/half.h"
#include "device/cpu/kernels.h"

namespace farandole {
namespace {

using Buffer = std::vector<std::byte>;

// All reductions except Adasum, which has its own test.
constexpr std::array kAllOps = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin,
                                ReduceOp::kMax, ReduceOp::kProduct, ReduceOp::kAverageOfPresent};

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

// Scales in float64, then truncates toward zero and clamps; long double holds all 64-bit integers.
template <class T>
T scaled_integer(T value, double scale) {
  if (scale == 1) return value;
  const long double truncated = std::trunc(static_cast<double>(value) * scale);
  return static_cast<T>(std::clamp<long double>(truncated, std::numeric_limits<T>::min(),
                                                std::numeric_limits<T>::max()));
}

template <class T>
std::vector<T> all_scaled(std::vector<T> values, double scale) {
  for (T& value : values) {
    if constexpr (std::is_integral_v<T>)
      value = scaled_integer(value, scale);
    else
      value *= static_cast<T>(scale);
  }
  return values;
}

// The reference for integers: sums and comparisons are exact in 128 bits; products wrap in 64 bits.
template <class T>
T reference_integer(const Reduction& reduction, const std::vector<T>& inputs) {
  const std::vector<T> values = all_scaled(inputs, reduction.prescale);
  Int128 sum = 0;
  std::uint64_t product = 1;
  for (const T value : values) {
    sum += value;
    product *= static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
  }
  const auto wrapped = static_cast<std::int64_t>(static_cast<std::uint64_t>(sum));
  T result{};
  switch (reduction.op) {
    case ReduceOp::kSum:
      result = static_cast<T>(static_cast<std::uint64_t>(sum));
      break;
    case ReduceOp::kAverage:
    case ReduceOp::kAverageOfPresent:
      result = static_cast<T>(wrapped / reduction.divisor);
      break;
    case ReduceOp::kMin:
      result = *std::ranges::min_element(values);
      break;
    case ReduceOp::kMax:
      result = *std::ranges::max_element(values);
      break;
    case ReduceOp::kProduct:
      result = static_cast<T>(product);
      break;
    case ReduceOp::kAdasum:
      break;
  }
  return scaled_integer(result, reduction.postscale);
}

bool is_average(ReduceOp op) {
  return op == ReduceOp::kAverage || op == ReduceOp::kAverageOfPresent;
}

// The reference for floats. It computes in the accumulator type, in rank order. For min and max, 0
// and −0 are equal; the later one of two equal inputs is the result.
template <class T>
T reference_float(const Reduction& reduction, const std::vector<T>& inputs) {
  const std::vector<T> values = all_scaled(inputs, reduction.prescale);
  const ReduceOp op = reduction.op;
  T result = values[0];
  for (std::size_t rank = 1; rank < values.size(); ++rank) {
    const T value = values[rank];
    if (op == ReduceOp::kSum || is_average(op)) result += value;
    if (op == ReduceOp::kProduct) result *= value;
    if (std::isnan(result)) continue;
    if (op == ReduceOp::kMin && (std::isnan(value) || value <= result)) result = value;
    if (op == ReduceOp::kMax && (std::isnan(value) || value >= result)) result = value;
  }
  if (is_average(op)) result /= static_cast<T>(reduction.divisor);
  return all_scaled(std::vector<T>{result}, reduction.postscale)[0];
}

template <class T>
std::vector<T> column(const std::vector<Buffer>& inputs, std::size_t index) {
  std::vector<T> values;
  for (const Buffer& input : inputs) values.push_back(read_as<T>(input, index));
  return values;
}

template <class Half>
std::vector<float> widen(const std::vector<Half>& values) {
  std::vector<float> wide;
  for (const Half value : values) wide.push_back(to_float(value));
  return wide;
}

bool reference_bool(const Reduction& reduction, const std::vector<std::uint8_t>& values) {
  const auto is_true = [&](std::uint8_t value) { return value != 0 && reduction.prescale != 0; };
  const bool is_or = reduction.op == ReduceOp::kSum || reduction.op == ReduceOp::kMax;
  const bool result =
      is_or ? std::ranges::any_of(values, is_true) : std::ranges::all_of(values, is_true);
  return result && reduction.postscale != 0;
}

void reference_element(const Reduction& reduction, const std::vector<Buffer>& inputs,
                       std::size_t index, Buffer& expected) {
  const auto integer = [&]<class T>(T) {
    write_as(expected, index, reference_integer(reduction, column<T>(inputs, index)));
  };
  const auto floating = [&]<class T>(T) {
    write_as(expected, index, reference_float(reduction, column<T>(inputs, index)));
  };
  switch (reduction.dtype) {
    case DType::kBool:
      return write_as(expected, index,
                      reference_bool(reduction, column<std::uint8_t>(inputs, index)));
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
      return write_as(
          expected, index,
          to_float16(reference_float(reduction, widen(column<Float16>(inputs, index)))));
    case DType::kBFloat16:
      return write_as(
          expected, index,
          to_bfloat16(reference_float(reduction, widen(column<BFloat16>(inputs, index)))));
    case DType::kFloat32:
      return floating(float{});
    case DType::kFloat64:
      return floating(double{});
  }
}

Buffer reference(const Reduction& reduction, const std::vector<Buffer>& inputs) {
  const std::size_t bytes = row_of(reduction.dtype).bytes;
  Buffer expected(inputs[0].size());
  for (std::size_t index = 0; index < expected.size() / bytes; ++index)
    reference_element(reduction, inputs, index, expected);
  return expected;
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

// Every second element consists of random bits. The first 16 bits of the others come from a special
// value of some type: a zero, a one, an infinity, a NaN, a subnormal or an extreme integer. Their
// last bits are below, at or above the middle between two 16-bit floats.
std::vector<Buffer> random_inputs(const DTypeRow& row, int inputs, std::size_t count) {
  constexpr std::array<std::uint64_t, 16> kFirstBits = {
      0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x03ff, 0x3c00, 0xbc00,
      0x3f80, 0xbf80, 0x3ff0, 0x7c00, 0xfc00, 0x7f80, 0x7ff0, 0x7fff};
  constexpr std::array<std::uint64_t, 5> kLastBits = {0, 1, 0x7fffffffffff, 0x800000000000,
                                                      0x800000000001};
  std::mt19937_64 random(count * 8 + static_cast<std::size_t>(inputs));
  std::vector<Buffer> buffers(static_cast<std::size_t>(inputs), Buffer(count * row.bytes));
  for (Buffer& buffer : buffers) {
    for (std::size_t index = 0; index < count; ++index) {
      std::uint64_t bits = random();
      if (index % 2 == 1)
        bits = (kFirstBits[bits % kFirstBits.size()] << 48) | kLastBits[(bits >> 32) % 5];
      bits >>= 64 - 8 * row.bytes;
      std::memcpy(&buffer[index * row.bytes], &bits, row.bytes);  // little-endian
    }
  }
  return buffers;
}

// Compares bit by bit, but any NaN equals any other. `expected` may be longer than `actual`.
void expect_equal(DType dtype, const Buffer& actual, const Buffer& expected) {
  if (std::equal(actual.begin(), actual.end(), expected.begin())) return;
  const std::size_t bytes = row_of(dtype).bytes;
  for (std::size_t index = 0; index < actual.size() / bytes; ++index) {
    if (is_nan(dtype, expected, index)) {
      ASSERT_TRUE(is_nan(dtype, actual, index)) << "element " << index;
    } else {
      ASSERT_EQ(std::memcmp(&actual[index * bytes], &expected[index * bytes], bytes), 0)
          << "element " << index;
    }
  }
}

struct Scales {
  double prescale;
  double postscale;
};

// The pairs cover a scale of 1, exact scaling, rounding, overflow in every type, underflow, and a
// scale of 0.
constexpr Scales kScales[] = {{1, 1},         {0.5, 1},       {1, 0.25}, {-3.7, 1.0 / 3},
                              {1e300, 1e300}, {1e-300, 1e30}, {0, 1},    {1, -0.0}};

// Reduces each element in a separate call with the baseline instruction set. The other elements,
// the count and the address must not change the bits of a result.
Buffer reduce_one_by_one(const Reduction& reduction, const std::vector<Buffer>& inputs) {
  const std::size_t bytes = row_of(reduction.dtype).bytes;
  Buffer results(inputs[0].size());
  for (std::size_t offset = 0; offset < results.size(); offset += bytes) {
    std::vector<const std::byte*> pointers;
    for (const Buffer& input : inputs) pointers.push_back(&input[offset]);
    const std::array outputs = {&results[offset]};
    reduce_with(instruction_sets().back(), reduction, pointers, outputs, 1);
  }
  return results;
}

// A tensor that begins `offset` bytes after an aligned address, with guard bytes after its end.
class GuardedTensor {
 public:
  GuardedTensor(const std::byte* content, std::size_t bytes, std::size_t offset)
      : memory_(offset + bytes + kGuard.size()), offset_(offset), bytes_(bytes) {
    if (content != nullptr) std::copy_n(content, bytes, first());
    std::ranges::copy(kGuard, first() + bytes);
  }
  std::byte* first() { return memory_.data() + offset_; }
  bool guard_is_intact() {
    return std::ranges::equal(kGuard, std::span(memory_).last(kGuard.size()));
  }
  Buffer content() { return {first(), first() + bytes_}; }

 private:
  static constexpr std::array kGuard = {std::byte{0x5a}, std::byte{0xa5}};
  Buffer memory_;
  std::size_t offset_;
  std::size_t bytes_;
};

using ReduceCase = std::tuple<DTypeRow, ReduceOp, InstructionSet>;

class Reduce : public ::testing::TestWithParam<ReduceCase> {
 protected:
  bool is_defined() const { return check_reduction(row().dtype, op()).ok(); }
  const DTypeRow& row() const { return std::get<0>(GetParam()); }
  ReduceOp op() const { return std::get<1>(GetParam()); }
  const InstructionSet& instruction_set() const { return std::get<2>(GetParam()); }
  Reduction reduction(Scales scales, int divisor) const {
    return {.dtype = row().dtype,
            .op = op(),
            .divisor = divisor,
            .prescale = scales.prescale,
            .postscale = scales.postscale};
  }
  // Reduces into two outputs that are not inputs, and compares them with the reference.
  void expect_reference(const Reduction& reduction, int inputs, std::size_t count) const {
    SCOPED_TRACE(testing::Message()
                 << inputs << " inputs, " << count << " elements, divisor " << reduction.divisor
                 << ", scales " << reduction.prescale << " and " << reduction.postscale);
    const std::vector<Buffer> buffers = random_inputs(row(), inputs, count);
    std::vector<const std::byte*> pointers;
    for (const Buffer& buffer : buffers) pointers.push_back(buffer.data());
    Buffer first(count * row().bytes);
    Buffer second(count * row().bytes);
    const std::array outputs = {first.data(), second.data()};
    reduce_with(instruction_set(), reduction, pointers, outputs, static_cast<std::int64_t>(count));
    expect_equal(row().dtype, first, reference(reduction, buffers));
    EXPECT_EQ(first, second);
  }
  // Checks the first `count` elements, with inputs and outputs at aligned and unaligned addresses.
  void expect_bits(const Reduction& reduction, const std::vector<Buffer>& inputs, std::size_t count,
                   const Buffer& expected) const {
    for (const std::size_t outputs : {1U, 2U, 3U}) {
      for (const std::size_t offset : {0U, 1U, 31U}) {
        SCOPED_TRACE(testing::Message() << inputs.size() << " inputs, " << outputs << " outputs, "
                                        << count << " elements, offset " << offset);
        expect_bits_at(reduction, inputs, {outputs, offset, count * row().bytes}, expected);
      }
    }
  }

 private:
  struct Layout {
    std::size_t outputs;
    std::size_t offset;
    std::size_t bytes;
  };
  void expect_bits_at(const Reduction& reduction, const std::vector<Buffer>& inputs, Layout layout,
                      const Buffer& expected) const {
    std::vector<GuardedTensor> from;
    std::vector<GuardedTensor> to;
    std::vector<const std::byte*> read;
    std::vector<std::byte*> written;
    for (const Buffer& input : inputs) {
      from.emplace_back(input.data(), layout.bytes, layout.offset * (from.size() + 1));
      read.push_back(from.back().first());
    }
    for (std::size_t output = 0; output < layout.outputs; ++output) {
      to.emplace_back(nullptr, layout.bytes, layout.offset * output);
      written.push_back(to.back().first());
    }
    reduce_with(instruction_set(), reduction, read, written,
                static_cast<std::int64_t>(layout.bytes / row().bytes));
    for (GuardedTensor& output : to) {
      ASSERT_TRUE(output.guard_is_intact());
      expect_equal(row().dtype, output.content(), expected);
    }
  }
};

TEST_P(Reduce, equals_the_reference) {
  if (!is_defined()) return;
  for (const int inputs : {1, 2, 3, 8})
    for (const std::size_t count : {0U, 1U, 7U, 1023U, 1024U, 1025U, 3000U})
      expect_reference(reduction({1, 1}, inputs), inputs, count);
}

TEST_P(Reduce, equals_the_reference_with_scales) {
  if (!is_defined()) return;
  for (const Scales scales : kScales)
    for (const std::size_t count : {1U, 31U, 1025U})
      expect_reference(reduction(scales, 5), 3, count);  // 2 of 5 members have joined
}

TEST_P(Reduce, an_output_may_be_an_input_and_need_not_be_aligned) {
  if (!is_defined()) return;
  constexpr std::size_t kCount = 2501;
  const std::size_t bytes = kCount * row().bytes;
  const std::vector<Buffer> buffers = random_inputs(row(), 3, kCount);
  for (const Scales scales : {kScales[0], kScales[3]}) {
    const Buffer expected = reference(reduction(scales, 3), buffers);
    for (std::size_t index = 0; index < buffers.size(); ++index) {
      std::vector<Buffer> unaligned(buffers.size(), Buffer(bytes + 1));
      std::vector<const std::byte*> pointers;
      for (std::size_t input = 0; input < buffers.size(); ++input) {
        std::ranges::copy(buffers[input], unaligned[input].begin() + 1);
        pointers.push_back(unaligned[input].data() + 1);
      }
      const std::array in_place = {unaligned[index].data() + 1};
      reduce_with(instruction_set(), reduction(scales, 3), pointers, in_place, kCount);
      unaligned[index].erase(unaligned[index].begin());
      expect_equal(row().dtype, unaligned[index], expected);
    }
  }
}

TEST_P(Reduce, bits_do_not_depend_on_address_count_or_other_elements) {
  if (!is_defined()) return;
  constexpr std::size_t kCountMax = 600;
  constexpr std::size_t kCounts[] = {0, 1, 3, 33, 127, 256, kCountMax};
  for (int inputs = 1; inputs <= 8; ++inputs) {
    const std::vector<Buffer> buffers = random_inputs(row(), inputs, kCountMax);
    for (const Scales scales : {kScales[0], kScales[3]}) {
      const Buffer expected = reduce_one_by_one(reduction(scales, inputs), buffers);
      for (const std::size_t count : kCounts)
        expect_bits(reduction(scales, inputs), buffers, count, expected);
    }
  }
}

std::string test_name(const ::testing::TestParamInfo<ReduceCase>& info) {
  const auto& [row, op, set] = info.param;
  return std::string(row.name) + "_" + std::string(name_of(op)) + "_" + set.name;
}

INSTANTIATE_TEST_SUITE_P(
    All, Reduce,
    ::testing::Combine(::testing::ValuesIn(kDTypes), ::testing::ValuesIn(kAllOps),
                       ::testing::ValuesIn(instruction_sets().begin(), instruction_sets().end())),
    test_name);

template <class T>
T reduce_values(const Reduction& reduction, const std::vector<T>& values) {
  std::vector<const std::byte*> inputs;
  for (const T& value : values) inputs.push_back(reinterpret_cast<const std::byte*>(&value));
  T result{};
  const std::array outputs = {reinterpret_cast<std::byte*>(&result)};
  reduce(reduction, inputs, outputs, 1);
  return result;
}

template <class T>
T reduce_values(DType dtype, ReduceOp op, const std::vector<T>& values) {
  return reduce_values<T>({.dtype = dtype, .op = op, .divisor = static_cast<int>(values.size())},
                          values);
}

TEST(ReduceRules, halves_are_rounded_once) {
  // 2048 + 1 rounds back to 2048 in float16; the sum of all four is 2051, which rounds to 2052.
  std::vector<Float16> values = {to_float16(2048), to_float16(1), to_float16(1), to_float16(1)};
  EXPECT_EQ(to_float(reduce_values(DType::kFloat16, ReduceOp::kSum, values)), 2052.0F);
}

TEST(ReduceRules, integers_wrap_and_averages_wrap_only_in_64_bits) {
  constexpr std::int8_t kLargest = std::numeric_limits<std::int8_t>::max();
  EXPECT_EQ(reduce_values<std::int8_t>(DType::kInt8, ReduceOp::kSum, {kLargest, 1}), -128);
  EXPECT_EQ(reduce_values<std::int8_t>(DType::kInt8, ReduceOp::kAverage, {kLargest, kLargest}),
            kLargest);
  constexpr std::uint16_t kLarge = 0xffff;
  EXPECT_EQ(reduce_values<std::uint16_t>(DType::kUInt16, ReduceOp::kProduct, {kLarge, kLarge}), 1);
  EXPECT_EQ(reduce_values<std::uint16_t>(DType::kUInt16, ReduceOp::kAverage, {kLarge, kLarge}),
            kLarge);
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(reduce_values<std::int64_t>(DType::kInt64, ReduceOp::kAverage, {kHuge, 1}),
            std::numeric_limits<std::int64_t>::min() / 2);
}

TEST(ReduceRules, averages_of_integers_truncate) {
  EXPECT_EQ(reduce_values<std::int32_t>(DType::kInt32, ReduceOp::kAverage, {-3, -4}), -3);
  EXPECT_EQ(reduce_values<std::int32_t>(DType::kInt32, ReduceOp::kAverage, {3, 4}), 3);
}

TEST(ReduceRules, a_nan_anywhere_makes_min_and_max_nan) {
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    EXPECT_TRUE(std::isnan(reduce_values<float>(DType::kFloat32, op, {NAN, 1, 2})));
    EXPECT_TRUE(std::isnan(reduce_values<float>(DType::kFloat32, op, {1, NAN, 2})));
    EXPECT_TRUE(std::isnan(reduce_values<double>(DType::kFloat64, op, {1, 2, NAN})));
  }
}

TEST(ReduceRules, any_non_zero_byte_is_true) {
  EXPECT_EQ(reduce_values<std::uint8_t>(DType::kBool, ReduceOp::kSum, {0, 2}), 1);
  EXPECT_EQ(reduce_values<std::uint8_t>(DType::kBool, ReduceOp::kMin, {4, 2}), 1);
  EXPECT_EQ(reduce_values<std::uint8_t>(DType::kBool, ReduceOp::kProduct, {1, 0}), 0);
}

TEST(ReduceRules, scaled_halves_are_rounded_once_and_may_overflow_in_between) {
  const std::vector<Float16> values = {to_float16(60000), to_float16(60000)};
  EXPECT_EQ(to_float(reduce_values({.dtype = DType::kFloat16, .prescale = 4, .postscale = 0.125},
                                   values)),
            60000.0F);
  EXPECT_EQ(to_float(reduce_values({.dtype = DType::kFloat16, .postscale = 1}, values)), INFINITY);
}

TEST(ReduceRules, scaled_integers_truncate_and_saturate) {
  const auto scaled = []<class T>(DType dtype, T value, double scale) {
    const T with_prescale = reduce_values<T>({.dtype = dtype, .prescale = scale}, {value});
    EXPECT_EQ(with_prescale, reduce_values<T>({.dtype = dtype, .postscale = scale}, {value}));
    return with_prescale;
  };
  EXPECT_EQ(scaled(DType::kInt8, std::int8_t{-7}, 0.5), -3);
  EXPECT_EQ(scaled(DType::kInt8, std::int8_t{100}, 1.27999), 127);
  EXPECT_EQ(scaled(DType::kInt8, std::int8_t{100}, 1.29), 127);
  EXPECT_EQ(scaled(DType::kInt8, std::int8_t{-100}, 1.285), -128);
  EXPECT_EQ(scaled(DType::kUInt8, std::uint8_t{3}, -1.0), 0);
  EXPECT_EQ(scaled(DType::kUInt16, std::uint16_t{0xffff}, 2.0), 0xffff);
  constexpr auto kLargest = std::numeric_limits<std::int64_t>::max();
  constexpr auto kSmallest = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ(scaled(DType::kInt64, kLargest, 1e308), kLargest);
  EXPECT_EQ(scaled(DType::kInt64, kLargest, 0.5), std::int64_t{1} << 62);
  EXPECT_EQ(scaled(DType::kInt64, kSmallest, -1.0), kLargest);
  EXPECT_EQ(scaled(DType::kInt64, kLargest, -1e308), kSmallest);
}

// Frameworks change the floating-point mode of some threads. This must not change a result.
TEST(ReduceRules, the_mode_of_the_thread_changes_no_result) {
  constexpr float kTiny = std::numeric_limits<float>::denorm_min();
  constexpr std::array kExpected = {std::pair(ReduceOp::kSum, 8 * kTiny),
                                    std::pair(ReduceOp::kMax, 4 * kTiny),
                                    std::pair(ReduceOp::kAdasum, 4 * kTiny)};
  const FloatMode previous_mode = float_mode();
  for (const FloatMode mode : {kStandardMode, kFlushingMode}) {
    for (const auto& [op, expected] : kExpected) {
      set_float_mode(mode);
      const float result = reduce_values<float>(DType::kFloat32, op, {4 * kTiny, 4 * kTiny});
      const FloatMode final_mode = float_mode();
      set_float_mode(previous_mode);
      EXPECT_EQ(result, expected) << name_of(op);
      EXPECT_EQ(final_mode, mode);
    }
  }
}

// float64 cannot represent kNotInFloat64 exactly, so any scaling would change this number.
TEST(ReduceRules, a_scale_of_one_changes_no_bits) {
  constexpr std::int64_t kNotInFloat64 = (std::int64_t{1} << 53) + 1;
  EXPECT_EQ(reduce_values<std::int64_t>({.dtype = DType::kInt64}, {kNotInFloat64}), kNotInFloat64);
  EXPECT_EQ(reduce_values<std::int64_t>({.dtype = DType::kInt64, .postscale = -1}, {kNotInFloat64}),
            1 - kNotInFloat64);
}

TEST(ReduceRules, averages_divide_by_members_not_by_inputs) {
  EXPECT_EQ(reduce_values<float>({.dtype = DType::kFloat32, .op = ReduceOp::kAverage, .divisor = 4},
                                 {6, 2}),
            2.0F);
  EXPECT_EQ(reduce_values<std::int32_t>(
                {.dtype = DType::kInt32, .op = ReduceOp::kAverage, .divisor = 4, .postscale = 10},
                {-6, -3}),
            -20);
}

TEST(ReduceDeathTest, scales_that_are_not_finite_are_a_bug) {
  EXPECT_DEATH(reduce_values<float>({.prescale = NAN}, {1}), "scales are finite");
  EXPECT_DEATH(reduce_values<float>({.postscale = INFINITY}, {1}), "scales are finite");
  EXPECT_DEATH(reduce_values<float>({.op = ReduceOp::kAverage, .divisor = 0}, {1}), "divided by");
}

TEST(CheckReduction, rejects_only_the_averages_of_bool) {
  for (const DTypeRow& row : kDTypes) {
    for (const ReduceOp op : kAllOps) {
      const Status status = check_reduction(row.dtype, op);
      const bool rejected = row.dtype == DType::kBool && is_average(op);
      EXPECT_EQ(status.ok(), !rejected) << row.name << " " << name_of(op);
      if (!rejected) continue;
      EXPECT_EQ(status.code(), StatusCode::kFixCall);
      EXPECT_THAT(status.message(), ::testing::HasSubstr(std::string(name_of(op)) + " of bool"));
    }
  }
}

}  // namespace
}  // namespace farandole
