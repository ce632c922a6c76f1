#include "device/cpu/half.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <limits>
#include <vector>

namespace farandole {
namespace {

constexpr std::uint32_t kPatternCount = 1U << 16;

// Returns the value of a bit pattern by the definition of its format, in exact arithmetic.
double value_by_definition(std::uint32_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = static_cast<int>(bits) & ((1 << fraction_bits) - 1);
  const double sign = (bits & 0x8000U) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1)
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

struct Float16Format {
  using Half = Float16;
  static constexpr int kExponentBits = 5;
  static constexpr int kFractionBits = 10;
  static constexpr std::uint32_t kInfinity = 0x7c00;
  static std::uint16_t round(float value) { return to_float16(value).bits; }
};
struct BFloat16Format {
  using Half = BFloat16;
  static constexpr int kExponentBits = 8;
  static constexpr int kFractionBits = 7;
  static constexpr std::uint32_t kInfinity = 0x7f80;
  static std::uint16_t round(float value) { return to_bfloat16(value).bits; }
};

template <class Format>
class HalfFormats : public ::testing::Test {};
using Formats = ::testing::Types<Float16Format, BFloat16Format>;
TYPED_TEST_SUITE(HalfFormats, Formats);

template <class Format>
double value_of(std::uint32_t bits) {
  return value_by_definition(bits, Format::kExponentBits, Format::kFractionBits);
}

TYPED_TEST(HalfFormats, every_pattern_has_the_value_of_its_definition) {
  for (std::uint32_t bits = 0; bits < kPatternCount; ++bits) {
    const auto value = to_float(typename TypeParam::Half{static_cast<std::uint16_t>(bits)});
    const double expected = value_of<TypeParam>(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_EQ(value, expected) << bits;
      ASSERT_EQ(std::signbit(value), std::signbit(expected)) << bits;
    }
  }
}

TYPED_TEST(HalfFormats, every_pattern_survives_a_round_trip) {
  for (std::uint32_t bits = 0; bits < kPatternCount; ++bits) {
    const auto value = to_float(typename TypeParam::Half{static_cast<std::uint16_t>(bits)});
    const std::uint32_t round_trip = TypeParam::round(value);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(value_of<TypeParam>(round_trip))) << bits;
      ASSERT_EQ(round_trip & 0x8000U, bits & 0x8000U) << bits;
    } else {
      ASSERT_EQ(round_trip, bits);
    }
  }
}

// A value between two neighbours must round to the nearer neighbour. The middle must round to the
// even bit pattern. Infinity counts as the neighbour of the largest number.
TYPED_TEST(HalfFormats, rounding_is_to_nearest_even) {
  for (std::uint32_t bits = 0; bits < TypeParam::kInfinity; ++bits) {
    const double low = value_of<TypeParam>(bits);
    const double above = bits + 1 < TypeParam::kInfinity
                             ? value_of<TypeParam>(bits + 1)
                             : low + (low - value_of<TypeParam>(bits - 1));
    const double middle = low + (above - low) / 2;
    const auto middle_as_float = static_cast<float>(middle);
    ASSERT_EQ(middle_as_float, middle) << "a float32 can hold the middle";
    const std::uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    for (const std::uint32_t sign : {0U, 0x8000U}) {
      const float direction = sign == 0 ? 1.0F : -1.0F;
      ASSERT_EQ(TypeParam::round(direction * middle_as_float), even | sign) << bits;
      ASSERT_EQ(TypeParam::round(direction * std::nextafter(middle_as_float, 0.0F)), bits | sign);
      ASSERT_EQ(TypeParam::round(direction * std::nextafter(middle_as_float, INFINITY)),
                (bits + 1) | sign);
    }
  }
}

TYPED_TEST(HalfFormats, infinities_zeros_and_nans_are_kept) {
  EXPECT_EQ(TypeParam::round(INFINITY), TypeParam::kInfinity);
  EXPECT_EQ(TypeParam::round(-INFINITY), TypeParam::kInfinity | 0x8000U);
  EXPECT_EQ(TypeParam::round(std::numeric_limits<float>::max()), TypeParam::kInfinity);
  EXPECT_EQ(TypeParam::round(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(TypeParam::round(-0.0F), 0x8000U);
  // A NaN must stay a NaN even if all payload bits that are set are among the bits that are cut
  // off.
  for (const std::uint32_t bits : {0x7f800001U, 0xff800001U, 0x7fffffffU, 0xffffffffU})
    EXPECT_TRUE(std::isnan(value_of<TypeParam>(TypeParam::round(std::bit_cast<float>(bits)))));
}

}  // namespace
}  // namespace farandole
