// The two 16-bit float formats, with conversions from and to float32 that round to nearest even.
// Each conversion is one template without branches, for single numbers (std::uint32_t and float)
// and for vectors of them.
#pragma once

#include <cstdint>

namespace farandole {

// IEEE binary16: 1 sign, 5 exponent, 10 fraction bits.
struct Float16 {
  std::uint16_t bits;
};

// The upper half of a float32: 1 sign, 8 exponent, 7 fraction bits.
struct BFloat16 {
  std::uint16_t bits;
};

// These functions are always inlined. Otherwise the linker could use one copy for all files, and
// that copy might need a newer processor. In the argument `half`, the low 16 bits of each lane are
// a float16, and the high bits are 0.
template <class Floats, class Bits>
[[gnu::always_inline]] inline Floats float16_to_float32(Bits half) {
  // The 5 exponent bits of a float16 at their place in a float32.
  constexpr std::uint32_t kExponentBits = 0x1fU << 23;
  constexpr std::uint32_t kRebias = (127U - 15U) << 23;
  constexpr std::uint32_t kSmallestNormal = 113U << 23;  // 2^-14
  const Bits magnitude = (half & 0x7fffU) << 13;
  const Bits exponent = magnitude & kExponentBits;
  const Bits normal = magnitude + kRebias;
  const Bits infinity_or_nan = magnitude | 0x7f800000U;
  // A subnormal gets the exponent of 2^-14, which adds 2^-14 to the value. Then 2^-14 is
  // subtracted.
  const Floats subnormal = __builtin_bit_cast(Floats, magnitude + kSmallestNormal) -
                           __builtin_bit_cast(float, kSmallestNormal);
  Bits bits = exponent == 0 ? __builtin_bit_cast(Bits, subnormal) : normal;
  bits = exponent == kExponentBits ? infinity_or_nan : bits;
  return __builtin_bit_cast(Floats, bits | ((half & 0x8000U) << 16));
}

// Returns the float16 in the low 16 bits of each lane; the high bits are 0.
template <class Bits, class Floats>
[[gnu::always_inline]] inline Bits float32_to_float16(Floats value) {
  constexpr std::uint32_t kSmallestNormal = 113U << 23;  // 2^-14
  constexpr std::uint32_t kTooLarge = 143U << 23;        // 2^16
  constexpr std::uint32_t kHalf = 126U << 23;  // 0.5; its last fraction bit has the value 2^-24
  const Bits bits = __builtin_bit_cast(Bits, value);
  const Bits magnitude = bits & 0x7fffffffU;
  const Bits last_bit = (magnitude >> 13) & 1U;
  const Bits normal = (magnitude - ((127U - 15U) << 23) + 0xfffU + last_bit) >> 13;
  // For a subnormal, adding 0.5 makes the hardware round to multiples of 2^-24, the smallest
  // float16.
  const Floats shifted = __builtin_bit_cast(Floats, magnitude) + __builtin_bit_cast(float, kHalf);
  const Bits subnormal = __builtin_bit_cast(Bits, shifted) - kHalf;
  const Bits quiet_nan = ((magnitude >> 13) & 0x3ffU) | 0x7e00U;  // the NaN that processors produce
  const Bits infinity_or_nan = magnitude > 0x7f800000U ? quiet_nan : (bits & 0U) + 0x7c00U;
  Bits half = magnitude < kSmallestNormal ? subnormal : normal;
  half = magnitude >= kTooLarge ? infinity_or_nan : half;
  return half | ((bits >> 16) & 0x8000U);
}

// Returns the bfloat16 in the upper 16 bits of each lane; the lower 16 bits are undefined. No lane
// may be a NaN.
template <class Bits, class Floats>
[[gnu::always_inline]] inline Bits float32_to_bfloat16_without_nans(Floats value) {
  const Bits bits = __builtin_bit_cast(Bits, value);
  return bits + 0x7fffU + ((bits >> 16) & 1U);
}

// The same, but also correct for NaNs, which rounding could turn into infinity.
template <class Bits, class Floats>
[[gnu::always_inline]] inline Bits float32_to_bfloat16(Floats value) {
  const Bits quiet_nan = __builtin_bit_cast(Bits, value) | 0x400000U;
  return value != value ? quiet_nan : float32_to_bfloat16_without_nans<Bits>(value);
}

[[gnu::always_inline]] inline float to_float(BFloat16 half) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(half.bits) << 16);
}
[[gnu::always_inline]] inline BFloat16 to_bfloat16(float value) {
  return {static_cast<std::uint16_t>(float32_to_bfloat16<std::uint32_t>(value) >> 16)};
}
[[gnu::always_inline]] inline float to_float(Float16 half) {
  return float16_to_float32<float>(std::uint32_t{half.bits});
}
[[gnu::always_inline]] inline Float16 to_float16(float value) {
  return {static_cast<std::uint16_t>(float32_to_float16<std::uint32_t>(value))};
}

}  // namespace farandole
