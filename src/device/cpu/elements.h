// The element types of the kernels, and the only list of these types. The files that include this
// header are compiled for different processors; vector_kernels.h lists the rules for such code.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <array>
#include <cstddef>
#include <cstdint>

#include "device/cpu/half.h"
#include "farandole/dtype.h"

namespace farandole {
namespace {

#if defined(__AVX512BW__)
constexpr int kWidth = 64;  // bytes per register
#elif defined(__AVX2__)
constexpr int kWidth = 32;
#else
constexpr int kWidth = 16;
#endif

// A vector type of the compiler. Arithmetic, comparisons and the ?: operator work lane by lane.
template <class Lane>
struct VectorOf {
  using Type __attribute__((vector_size(kWidth))) = Lane;
};
template <class Lane>
using Vector = typename VectorOf<Lane>::Type;
using Bits = Vector<std::uint32_t>;
using Floats = Vector<float>;

template <class To, class From>
[[gnu::always_inline]] inline To bit_cast_to(From value) {
  return __builtin_bit_cast(To, value);
}

template <class Lane>
[[gnu::always_inline]] inline Vector<Lane> load(const std::byte* from) {
  Vector<Lane> value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}

[[gnu::always_inline]] inline void store(std::byte* to, Bits value) {
  __builtin_memcpy(to, &value, sizeof(value));
}

#if defined(__AVX512BW__)
// The two halves are stored one after the other. If the code first joined them in one register,
// float16 reductions would be 20 % slower.
struct TwoHalves {
  __m256i low;
  __m256i high;
};
[[gnu::always_inline]] inline void store(std::byte* to, const TwoHalves& value) {
  __builtin_memcpy(to, &value.low, sizeof(value.low));
  __builtin_memcpy(to + sizeof(value.low), &value.high, sizeof(value.high));
}
#endif

// Returns false only if neither vector holds a NaN. On processors without a fast test, always
// returns true.
[[gnu::always_inline]] inline bool may_hold_nan([[maybe_unused]] Floats a,
                                                [[maybe_unused]] Floats b) {
#if defined(__AVX512BW__)
  return _mm512_cmp_ps_mask(bit_cast_to<__m512>(a), bit_cast_to<__m512>(b), _CMP_UNORD_Q) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps(
             _mm256_cmp_ps(bit_cast_to<__m256>(a), bit_cast_to<__m256>(b), _CMP_UNORD_Q)) != 0;
#elif defined(__SSE2__)
  return _mm_movemask_ps(_mm_cmpunord_ps(bit_cast_to<__m128>(a), bit_cast_to<__m128>(b))) != 0;
#else
  return true;
#endif
}

// An element type. widen() loads kWidth bytes of elements into kParts vectors of the accumulator
// type; narrow() converts these vectors back to the stored type.
template <class T>
struct NumberElement {
  using Lane = T;
  static constexpr int kParts = 1;
  static constexpr int kBytes = sizeof(T);
  [[gnu::always_inline]] static void widen(const std::byte* from, Vector<T>* parts) {
    parts[0] = load<T>(from);
  }
  [[gnu::always_inline]] static Bits narrow(const Vector<T>* parts) {
    return bit_cast_to<Bits>(parts[0]);
  }
};

struct Bool {
  using Lane = std::uint8_t;
  static constexpr int kParts = 1;
  static constexpr int kBytes = 1;
  [[gnu::always_inline]] static void widen(const std::byte* from, Vector<Lane>* parts) {
    parts[0] = bit_cast_to<Vector<Lane>>(load<Lane>(from) != 0) & 1;
  }
  [[gnu::always_inline]] static Bits narrow(const Vector<Lane>* parts) {
    return bit_cast_to<Bits>(parts[0]);
  }
};

// Bfloat16. A bfloat16 is the upper half of a float32. So each element stays in its lane: the lower
// halves of all 32-bit lanes become one vector, and the upper halves become the other.
struct BFloat16Element {
  using Lane = float;
  static constexpr int kParts = 2;
  static constexpr int kBytes = 2;
  [[gnu::always_inline]] static void widen(const std::byte* from, Floats* parts) {
    const Bits pairs = load<std::uint32_t>(from);
    parts[0] = bit_cast_to<Floats>(pairs << 16);
    parts[1] = bit_cast_to<Floats>(pairs & 0xffff0000U);
  }
  [[gnu::always_inline]] static Bits narrow(const Floats* parts) {
    if (may_hold_nan(parts[0], parts[1])) [[unlikely]]
      return join_halves(float32_to_bfloat16<Bits>(parts[0]), float32_to_bfloat16<Bits>(parts[1]));
    return join_halves(float32_to_bfloat16_without_nans<Bits>(parts[0]),
                       float32_to_bfloat16_without_nans<Bits>(parts[1]));
  }
  [[gnu::always_inline]] static Bits join_halves(Bits lower, Bits upper) {
    return (lower >> 16) | (upper & 0xffff0000U);
  }
};

// Float16. Uses the processor's conversion instructions, if it has such instructions. These
// instructions round to nearest even in every rounding mode. The order in which the instructions
// deliver the elements determines which element is in which part.
struct Float16Element {
  using Lane = float;
  static constexpr int kParts = 2;
  static constexpr int kBytes = 2;
#if defined(__AVX512BW__)
  // A mask that selects all lanes. The instruction is called with this mask, because GCC 12 warns
  // about its own header if the variant without a mask is called.
  static constexpr __mmask16 kAllLanes = 0xffff;
  [[gnu::always_inline]] static void widen(const std::byte* from, Floats* parts) {
    const auto* const halves = reinterpret_cast<const __m256i_u*>(from);
    parts[0] = bit_cast_to<Floats>(_mm512_maskz_cvtph_ps(kAllLanes, _mm256_loadu_si256(halves)));
    parts[1] =
        bit_cast_to<Floats>(_mm512_maskz_cvtph_ps(kAllLanes, _mm256_loadu_si256(halves + 1)));
  }
  [[gnu::always_inline]] static TwoHalves narrow(const Floats* parts) {
    return {
        _mm512_maskz_cvtps_ph(kAllLanes, bit_cast_to<__m512>(parts[0]), _MM_FROUND_TO_NEAREST_INT),
        _mm512_maskz_cvtps_ph(kAllLanes, bit_cast_to<__m512>(parts[1]), _MM_FROUND_TO_NEAREST_INT)};
  }
#elif defined(__F16C__) && defined(__AVX2__)
  [[gnu::always_inline]] static void widen(const std::byte* from, Floats* parts) {
    const auto* const halves = reinterpret_cast<const __m128i_u*>(from);
    parts[0] = bit_cast_to<Floats>(_mm256_cvtph_ps(_mm_loadu_si128(halves)));
    parts[1] = bit_cast_to<Floats>(_mm256_cvtph_ps(_mm_loadu_si128(halves + 1)));
  }
  [[gnu::always_inline]] static Bits narrow(const Floats* parts) {
    const __m128i low = _mm256_cvtps_ph(bit_cast_to<__m256>(parts[0]), _MM_FROUND_TO_NEAREST_INT);
    const __m128i high = _mm256_cvtps_ph(bit_cast_to<__m256>(parts[1]), _MM_FROUND_TO_NEAREST_INT);
    return bit_cast_to<Bits>(__builtin_shufflevector(low, high, 0, 1, 2, 3));
  }
#elif defined(__aarch64__)
  [[gnu::always_inline]] static void widen(const std::byte* from, Floats* parts) {
    const auto halves = bit_cast_to<float16x8_t>(load<std::uint16_t>(from));
    parts[0] = bit_cast_to<Floats>(vcvt_f32_f16(vget_low_f16(halves)));
    parts[1] = bit_cast_to<Floats>(vcvt_high_f32_f16(halves));
  }
  [[gnu::always_inline]] static Bits narrow(const Floats* parts) {
    const float16x4_t low = vcvt_f16_f32(bit_cast_to<float32x4_t>(parts[0]));
    return bit_cast_to<Bits>(vcvt_high_f16_f32(low, bit_cast_to<float32x4_t>(parts[1])));
  }
#else
  [[gnu::always_inline]] static void widen(const std::byte* from, Floats* parts) {
    const Bits pairs = load<std::uint32_t>(from);
    parts[0] = float16_to_float32<Floats>(pairs & 0xffffU);
    parts[1] = float16_to_float32<Floats>(pairs >> 16);
  }
  [[gnu::always_inline]] static Bits narrow(const Floats* parts) {
    return float32_to_float16<Bits>(parts[0]) | (float32_to_float16<Bits>(parts[1]) << 16);
  }
#endif
};

// A table with one entry per dtype, indexed by DType. `Row<T>::kRow` is the entry of the element
// type T.
template <class T, template <class> class Row>
constexpr std::array<T, kDTypes.size()> kByDType = {
    Row<Bool>::kRow,
    Row<NumberElement<std::int8_t>>::kRow,
    Row<NumberElement<std::uint8_t>>::kRow,
    Row<NumberElement<std::int16_t>>::kRow,
    Row<NumberElement<std::uint16_t>>::kRow,
    Row<NumberElement<std::int32_t>>::kRow,
    Row<NumberElement<std::int64_t>>::kRow,
    Row<Float16Element>::kRow,
    Row<BFloat16Element>::kRow,
    Row<NumberElement<float>>::kRow,
    Row<NumberElement<double>>::kRow,
};

}  // namespace
}  // namespace farandole
