// Compares Adasum with a reference that combines whole vectors in a tree, in long double. The
// reference shares only the formula with the tested code.
#include "device/cpu/adasum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "device/cpu/float_mode.h"
#include "device/cpu/half.h"
#include "device/cpu/reduce.h"

namespace farandole {
namespace {

using Buffer = std::vector<std::byte>;
using Vector = std::vector<long double>;

long double dot(const Vector& a, const Vector& b) {
  long double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Vector combine(const Vector& a, const Vector& b) {
  const long double dot_product = dot(a, b);
  const auto coefficient = [&](long double square) {
    return square == 0 ? 1 : 1 - dot_product / (2 * square);
  };
  const long double coefficient_a = coefficient(dot(a, a));
  const long double coefficient_b = coefficient(dot(b, b));
  Vector result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    result[i] = coefficient_a * a[i] + coefficient_b * b[i];
  return result;
}

Vector reference_adasum(std::vector<Vector> level) {
  while (level.size() > 1) {
    std::vector<Vector> above;
    for (std::size_t i = 0; i + 1 < level.size(); i += 2)
      above.push_back(combine(level[i], level[i + 1]));
    if (level.size() % 2 == 1) above.push_back(level.back());
    level = above;
  }
  return level.front();
}

template <class T, class From>
T converted(From value) {
  const auto single = static_cast<float>(value);
  if constexpr (std::is_same_v<T, Float16>)
    return to_float16(single);
  else if constexpr (std::is_same_v<T, BFloat16>)
    return to_bfloat16(single);
  else
    return static_cast<T>(value);
}
template <class T>
long double as_long_double(T value) {
  if constexpr (std::is_floating_point_v<T>)
    return value;
  else
    return to_float(value);
}

template <class T>
Buffer encode(const Vector& values) {
  Buffer buffer(values.size() * sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const T element = converted<T>(values[i]);
    std::memcpy(&buffer[i * sizeof(T)], &element, sizeof(T));
  }
  return buffer;
}
template <class T>
Vector decode(const Buffer& buffer) {
  Vector values;
  for (std::size_t begin = 0; begin < buffer.size(); begin += sizeof(T)) {
    T element;
    std::memcpy(&element, &buffer[begin], sizeof(T));
    values.push_back(as_long_double(element));
  }
  return values;
}

template <class T>
struct Traits;
template <>
struct Traits<Float16> {
  static constexpr DType kDType = DType::kFloat16;
  static constexpr long double kEpsilon = 0x1p-11L;
};
template <>
struct Traits<BFloat16> {
  static constexpr DType kDType = DType::kBFloat16;
  static constexpr long double kEpsilon = 0x1p-8L;
};
template <>
struct Traits<float> {
  static constexpr DType kDType = DType::kFloat32;
  static constexpr long double kEpsilon = 0x1p-24L;
};
template <>
struct Traits<double> {
  static constexpr DType kDType = DType::kFloat64;
  static constexpr long double kEpsilon = 0x1p-53L;
};

Buffer adasum_with(const InstructionSet& set, const Reduction& reduction,
                   const std::vector<Buffer>& inputs, std::int64_t count) {
  std::vector<const std::byte*> pointers;
  for (const Buffer& input : inputs) pointers.push_back(input.data());
  Buffer output(inputs.front().size());
  const std::array outputs = {output.data()};
  reduce_with(set, reduction, pointers, outputs, count);
  return output;
}

template <class T>
Vector adasum(const std::vector<Vector>& vectors, double prescale = 1, double postscale = 1) {
  std::vector<Buffer> inputs;
  for (const Vector& vector : vectors) inputs.push_back(encode<T>(vector));
  const Reduction reduction = {.dtype = Traits<T>::kDType,
                               .op = ReduceOp::kAdasum,
                               .prescale = prescale,
                               .postscale = postscale};
  const auto count = static_cast<std::int64_t>(vectors.front().size());
  return decode<T>(adasum_with(instruction_sets().front(), reduction, inputs, count));
}

template <class T>
class AdasumOfType : public ::testing::Test {
 protected:
  // Returns vectors with a common random component, like gradients. They are rounded to the dtype.
  static std::vector<Vector> random_vectors(std::size_t members, std::size_t count) {
    std::mt19937 random(static_cast<unsigned>(members * 1000 + count));
    const auto random_value = [&] { return static_cast<double>(random() % 2001) / 1000 - 1; };
    Vector common(count);
    for (long double& value : common) value = random_value();
    std::vector<Vector> vectors(members, common);
    for (Vector& vector : vectors) {
      for (long double& value : vector) value += random_value();
      vector = decode<T>(encode<T>(vector));
    }
    return vectors;
  }

  // Allows for one rounding of the output and for the rounding errors of the intermediate float64
  // results. These errors depend on the size of the inputs, even if the inputs nearly cancel out
  // and the output is small.
  static void expect_near(const Vector& found, const Vector& expected) {
    ASSERT_EQ(found.size(), expected.size());
    constexpr long double kLargestInput = 2;
    for (std::size_t i = 0; i < found.size(); ++i)
      ASSERT_LE(std::abs(found[i] - expected[i]),
                1.01L * Traits<T>::kEpsilon * std::max(std::abs(expected[i]), 0x1p-14L) +
                    0x1p-44L * kLargestInput)
          << "element " << i;
  }
};
using Types = ::testing::Types<Float16, BFloat16, float, double>;
TYPED_TEST_SUITE(AdasumOfType, Types);

TYPED_TEST(AdasumOfType, equals_the_tree_for_any_number_of_members_and_elements) {
  for (const std::size_t members : std::initializer_list<std::size_t>{1, 2, 3, 4, 5, 6, 7, 8, 13})
    for (const std::size_t count :
         std::initializer_list<std::size_t>{1, 2, 7, 8, 9, 16, 31, 32, 33, 100, 2048, 5001}) {
      SCOPED_TRACE(testing::Message() << members << " members, " << count << " elements");
      const auto vectors = this->random_vectors(members, count);
      this->expect_near(adasum<TypeParam>(vectors), reference_adasum(vectors));
    }
}

TYPED_TEST(AdasumOfType, orthogonal_vectors_are_added_and_equal_ones_averaged) {
  const Vector x = {3, 0, -1, 0};
  const Vector y = {0, 5, 0, 2};
  EXPECT_EQ(adasum<TypeParam>({x, y}), (Vector{3, 5, -1, 2}));
  for (const std::size_t members : std::initializer_list<std::size_t>{2, 3, 4, 5, 8})
    EXPECT_EQ(adasum<TypeParam>(std::vector<Vector>(members, x)), x) << members;
}

TYPED_TEST(AdasumOfType, vectors_of_zeros_do_not_change_the_result) {
  const Vector x = {3, 0.5, -1};
  const Vector zeros = {0, 0, 0};
  EXPECT_EQ(adasum<TypeParam>({x, zeros}), x);
  EXPECT_EQ(adasum<TypeParam>({zeros, zeros, x, zeros, zeros}), x);
  EXPECT_EQ(adasum<TypeParam>({zeros, zeros, zeros}), zeros);
}

TYPED_TEST(AdasumOfType, vectors_that_cancel_out_count_as_zeros) {
  const Vector x = {1, 2, 3};
  const Vector opposite = {-1, -2, -3};
  const Vector y = {1, 1, 1};
  EXPECT_EQ(adasum<TypeParam>({x, opposite}), (Vector{0, 0, 0}));
  EXPECT_EQ(adasum<TypeParam>({x, opposite, y, y}), y);
}

TYPED_TEST(AdasumOfType, the_scales_are_factors) {
  const auto vectors = this->random_vectors(3, 50);
  Vector expected = reference_adasum(vectors);
  for (long double& value : expected) value *= 1.5L;
  this->expect_near(adasum<TypeParam>(vectors, 0.5, 3), expected);
  EXPECT_EQ(adasum<TypeParam>(vectors, 0, 3), Vector(50, 0));
}

// Every processor must get the same bits.
TYPED_TEST(AdasumOfType, has_the_same_bits_with_all_instruction_sets) {
  for (const std::size_t count : std::initializer_list<std::size_t>{5, 63, 5001}) {
    const auto vectors = this->random_vectors(5, count);
    std::vector<Buffer> inputs;
    for (const Vector& vector : vectors) inputs.push_back(encode<TypeParam>(vector));
    const Reduction reduction = {.dtype = Traits<TypeParam>::kDType, .op = ReduceOp::kAdasum};
    const auto adasum_on_set = [&](const InstructionSet& set) {
      return adasum_with(set, reduction, inputs, static_cast<std::int64_t>(count));
    };
    for (const InstructionSet& set : instruction_sets())
      EXPECT_TRUE(adasum_on_set(set) == adasum_on_set(instruction_sets().front())) << set.name;
  }
}

TYPED_TEST(AdasumOfType, an_infinity_or_nan_makes_all_elements_nan) {
  const long double infinity = std::numeric_limits<float>::infinity();
  for (const long double value_to_insert : {infinity, -infinity, std::nanl("")})
    for (const std::size_t place : {0U, 1U, 2U}) {
      std::vector<Vector> vectors(3, Vector{1, 2, 3});
      vectors[place][1] = value_to_insert;
      for (const long double value : adasum<TypeParam>(vectors)) EXPECT_TRUE(std::isnan(value));
    }
}

TEST(Adasum, works_with_the_largest_and_smallest_float32_values) {
  const long double largest = std::numeric_limits<float>::max();
  const long double smallest = std::numeric_limits<float>::denorm_min();
  const Vector large(5000, largest);
  const Vector small(5000, smallest);
  EXPECT_EQ(adasum<float>({large, large, large}), large);
  EXPECT_EQ(adasum<float>({small, small}), small);
  Vector upper(2, 0);
  Vector lower(2, 0);
  upper[0] = largest;
  lower[1] = smallest;
  EXPECT_EQ(adasum<float>({upper, lower}), (Vector{largest, smallest}));
  Vector opposite = large;
  for (long double& value : opposite) value = -value;
  EXPECT_EQ(adasum<float>({large, opposite}), Vector(5000, 0));
}

// The sum of the first two vectors is so small that rounding errors determine its direction. The
// combination with the third vector must not magnify these errors.
TEST(Adasum, does_not_magnify_rounding_errors_if_vectors_nearly_cancel_out) {
  for (int exponent = -1; exponent > -60; --exponent) {
    const Vector x = {1, 0, 0};
    const Vector almost_opposite = {-1, std::ldexp(1.0L, exponent), 0};
    const Vector y = {1, 1, 1};
    for (const long double value : adasum<double>({x, almost_opposite, y}))
      EXPECT_LE(std::abs(value), 3) << exponent;
  }
}

TEST(Adasum, a_null_input_counts_as_zeros) {
  const std::vector<Vector> vectors = {{1, 2, 0.5}, {0, 0, 0}, {2, -1, 1}, {1, 1, 1}, {0, 0, 0}};
  std::vector<Buffer> inputs;
  std::vector<const std::byte*> pointers;
  for (const Vector& vector : vectors) inputs.push_back(encode<double>(vector));
  for (const Buffer& input : inputs) pointers.push_back(input.data());
  pointers[1] = nullptr;
  pointers[4] = nullptr;
  Buffer output(inputs[0].size());
  const std::array outputs = {output.data()};
  reduce({.dtype = DType::kFloat64, .op = ReduceOp::kAdasum}, pointers, outputs, 3);
  EXPECT_EQ(decode<double>(output), adasum<double>(vectors));
}

TEST(Adasum, dot_products_of_parts_add_up) {
  const Vector a = {1, 2, 3, 4};
  const Vector b = {5, 6, 7, 8};
  const Buffer left = encode<float>(a);
  const Buffer right = encode<float>(b);
  std::array<double, dot_product_count(2)> products = {};
  const Adasum adasum_of_floats(DType::kFloat32);
  for (const std::size_t half : {std::size_t{0}, 2 * sizeof(float)}) {
    const std::array inputs = {left.data() + half, right.data() + half};
    adasum_of_floats.add_dot_products(inputs, 2, products);
  }
  EXPECT_THAT(products, testing::ElementsAre(30, 70, 174));
  std::array<double, 2> weights = {};
  compute_adasum_weights(products, 2, weights);
  EXPECT_THAT(weights, testing::ElementsAre(2 * (1 - 70.0 / 60), 2 * (1 - 70.0 / 348)));
}

TEST(Adasum, the_mode_of_the_thread_changes_no_sum_of_dot_products) {
  constexpr double kTiny = std::numeric_limits<double>::denorm_min();
  const std::array<double, 1> products = {kTiny};
  std::array<double, 1> sums = {kTiny};
  const FloatMode previous_mode = float_mode();
  set_float_mode(kFlushingMode);
  add_partial_dot_products(sums, std::as_bytes(std::span(products)).data());
  const FloatMode final_mode = float_mode();
  set_float_mode(previous_mode);
  EXPECT_EQ(sums[0], 2 * kTiny);
  EXPECT_EQ(final_mode, kFlushingMode);
}

TEST(Adasum, is_for_floats_only) {
  for (const DTypeRow& row : kDTypes) {
    const bool is_float =
        row.dlpack_code == DLPackCode::kFloat || row.dlpack_code == DLPackCode::kBFloat;
    EXPECT_EQ(check_reduction(row.dtype, ReduceOp::kAdasum).ok(), is_float) << row.name;
  }
  EXPECT_EQ(check_reduction(DType::kInt32, ReduceOp::kAdasum).message(),
            "the adasum of int32 values is not defined; convert the tensor to float32 first, or "
            "use sum");
}

}  // namespace
}  // namespace farandole
