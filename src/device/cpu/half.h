// The two 16-bit float formats: conversion from and to float32, rounding to nearest even. Written
// without branches, so that loops over them become vector code.
#pragma once

#include <bit>
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

inline float to_float(BFloat16 half) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(half.bits) << 16);
}

inline BFloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40U;  // rounding could turn a NaN into infinity
  const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return {static_cast<std::uint16_t>(nan ? quiet : rounded)};
}

inline float to_float(Float16 half) {
  constexpr std::uint32_t kExponent = 0x1fU << 23;  // the 5 exponent bits, moved into place
  constexpr std::uint32_t kRebias = (127U - 15U) << 23;
  constexpr std::uint32_t kSmallestNormal = 113U << 23;  // 2^-14
  const std::uint32_t magnitude = (half.bits & 0x7fffU) << 13;
  const std::uint32_t exponent = magnitude & (0x1fU << 23);
  const std::uint32_t normal = magnitude + kRebias;
  const std::uint32_t special = magnitude | 0x7f800000U;
  // A subnormal: put the fraction under an exponent of 2^-14 and take that 2^-14 away again.
  const float subnormal =
      std::bit_cast<float>(magnitude + kSmallestNormal) - std::bit_cast<float>(kSmallestNormal);
  std::uint32_t bits = exponent == 0 ? std::bit_cast<std::uint32_t>(subnormal) : normal;
  bits = exponent == kExponent ? special : bits;
  return std::bit_cast<float>(bits | (static_cast<std::uint32_t>(half.bits & 0x8000U) << 16));
}

inline Float16 to_float16(float value) {
  constexpr std::uint32_t kSmallestNormal = 113U << 23;  // 2^-14
  constexpr std::uint32_t kTooLarge = 143U << 23;        // 2^16
  constexpr std::uint32_t kHalf = 126U << 23;            // 0.5, whose last bit is worth 2^-24
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  const std::uint32_t odd = (magnitude >> 13) & 1U;
  const std::uint32_t normal = (magnitude - ((127U - 15U) << 23) + 0xfffU + odd) >> 13;
  // A subnormal: adding 0.5 makes the hardware round to multiples of 2^-24, our last bit.
  const float shifted = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kHalf);
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - kHalf;
  const std::uint32_t special = magnitude > 0x7f800000U ? 0x7e00U : 0x7c00U;
  std::uint32_t half = magnitude < kSmallestNormal ? subnormal : normal;
  half = magnitude >= kTooLarge ? special : half;
  return {static_cast<std::uint16_t>(half | ((bits >> 16) & 0x8000U))};
}

}  // namespace farandole
