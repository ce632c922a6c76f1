// The source of the Adasum kernels. It is compiled like vector_kernels.h, and its code must follow
// the same rules. The kernels add eight float64 numbers in parallel with every instruction set, so
// the order of the additions and the result are always the same.
#pragma once

#include "device/cpu/elements.h"
#include "device/cpu/kernels.h"

namespace farandole {
namespace {

constexpr int kLanes = 8;
using Doubles = double __attribute__((vector_size(kLanes * sizeof(double))));
using Singles = float __attribute__((vector_size(kLanes * sizeof(float))));
using Words = std::uint32_t __attribute__((vector_size(kLanes * sizeof(std::uint32_t))));
using HalfWords = std::uint16_t __attribute__((vector_size(kLanes * sizeof(std::uint16_t))));

template <class Memory>
[[gnu::always_inline]] inline void load_lanes(const std::byte* from, Memory& lanes) {
  __builtin_memcpy(&lanes, from, sizeof(lanes));
}
template <class Memory>
[[gnu::always_inline]] inline void store_lanes(std::byte* to, const Memory& lanes) {
  __builtin_memcpy(to, &lanes, sizeof(lanes));
}

// Converts eight elements in memory to float64 numbers and back. Writing rounds to nearest even;
// values of half types are first rounded to float32. Only floating-point types have a
// specialization.
template <class Element>
struct Lanes;
template <>
struct Lanes<NumberElement<double>> {
  [[gnu::always_inline]] static void read(const std::byte* from, Doubles& to) {
    load_lanes(from, to);
  }
  [[gnu::always_inline]] static void write(const Doubles& from, std::byte* to) {
    store_lanes(to, from);
  }
};
template <>
struct Lanes<NumberElement<float>> {
  [[gnu::always_inline]] static void read(const std::byte* from, Doubles& to) {
    Singles singles;
    load_lanes(from, singles);
    to = __builtin_convertvector(singles, Doubles);
  }
  [[gnu::always_inline]] static void write(const Doubles& from, std::byte* to) {
    const Singles singles = __builtin_convertvector(from, Singles);
    store_lanes(to, singles);
  }
};
template <>
struct Lanes<BFloat16Element> {
  [[gnu::always_inline]] static void read(const std::byte* from, Doubles& to) {
    HalfWords halves;
    load_lanes(from, halves);
    const Words words = __builtin_convertvector(halves, Words) << 16;
    to = __builtin_convertvector(bit_cast_to<Singles>(words), Doubles);
  }
  [[gnu::always_inline]] static void write(const Doubles& from, std::byte* to) {
    const Singles singles = __builtin_convertvector(from, Singles);
    const Words words = float32_to_bfloat16<Words>(singles) >> 16;
    const HalfWords halves = __builtin_convertvector(words, HalfWords);
    store_lanes(to, halves);
  }
};
template <>
struct Lanes<Float16Element> {
  [[gnu::always_inline]] static void read(const std::byte* from, Doubles& to) {
#if defined(__F16C__) && defined(__AVX2__)
    const auto* const halves = reinterpret_cast<const __m128i_u*>(from);
    const auto singles = bit_cast_to<Singles>(_mm256_cvtph_ps(_mm_loadu_si128(halves)));
#else
    HalfWords halves;
    load_lanes(from, halves);
    const auto singles = float16_to_float32<Singles>(__builtin_convertvector(halves, Words));
#endif
    to = __builtin_convertvector(singles, Doubles);
  }
  [[gnu::always_inline]] static void write(const Doubles& from, std::byte* to) {
    const Singles singles = __builtin_convertvector(from, Singles);
#if defined(__F16C__) && defined(__AVX2__)
    store_lanes(to, _mm256_cvtps_ph(bit_cast_to<__m256>(singles), _MM_FROUND_TO_NEAREST_INT));
#else
    const Words words = float32_to_float16<Words>(singles);
    const HalfWords halves = __builtin_convertvector(words, HalfWords);
    store_lanes(to, halves);
#endif
  }
};

// Reads and writes the last vector, which has fewer than eight elements. Reading fills the missing
// elements with zeros.
template <class Element>
struct PartialVector {
  explicit PartialVector(std::int64_t count)
      : bytes(static_cast<std::size_t>(count * Element::kBytes)) {}
  [[gnu::always_inline]] void read(const std::byte* from, Doubles& to) {
    std::byte memory[kLanes * Element::kBytes] = {};
    __builtin_memcpy(memory, from, bytes);
    Lanes<Element>::read(memory, to);
  }
  [[gnu::always_inline]] void write(const Doubles& from, std::byte* to) {
    std::byte memory[kLanes * Element::kBytes];
    Lanes<Element>::write(from, memory);
    __builtin_memcpy(to, memory, bytes);
  }
  std::size_t bytes;
};

// The number of vectors that a loop adds to different sums, so that the processor can add them in
// parallel. An addition to the same sum would have to wait for the previous addition.
constexpr std::int64_t kVectorsInParallel = 2;

template <bool kSquare>
struct Products {
  Doubles sums[4];

  [[gnu::always_inline]] void add(const Doubles* left, const Doubles* right) {
    sums[0] += left[0] * right[0];
    sums[1] += left[0] * right[1];
    if constexpr (!kSquare) sums[2] += left[1] * right[0];
    sums[3] += left[1] * right[1];
  }
};

template <class Element, bool kSquare>
void compute_products(const ProductArguments& arguments) {
  Products<kSquare> partial_products[kVectorsInParallel] = {};
  Doubles left[2];
  Doubles right[2];
  const auto add = [&](auto&& read, std::int64_t offset, Products<kSquare>& to)
                       __attribute__((always_inline)) {
                         for (int input = 0; input < 2; ++input) {
                           read(arguments.left[input] + offset, left[input]);
                           if constexpr (!kSquare)
                             read(arguments.right[input] + offset, right[input]);
                         }
                         to.add(left, kSquare ? left : right);
                       };
  const std::int64_t step = kLanes * Element::kBytes;
  std::int64_t offset = 0;
  std::int64_t remaining = arguments.count;
  for (; remaining >= kVectorsInParallel * kLanes; remaining -= kVectorsInParallel * kLanes)
    for (Products<kSquare>& products : partial_products) {
      add(Lanes<Element>::read, offset, products);
      offset += step;
    }
  for (Products<kSquare>& products : partial_products) {
    if (remaining <= 0) break;
    PartialVector<Element> partial(remaining < kLanes ? remaining : kLanes);
    add([&](const std::byte* from, Doubles& to)
            __attribute__((always_inline)) { partial.read(from, to); },
        offset, products);
    offset += step;
    remaining -= kLanes;
  }
  for (int product = 0; product < 4; ++product) {
    const Doubles sum = partial_products[0].sums[product] + partial_products[1].sums[product];
    double total = 0;
    for (int lane = 0; lane < kLanes; ++lane) total += sum[lane];
    arguments.products[product] = total;
  }
  if constexpr (kSquare) arguments.products[2] = arguments.products[1];
}

template <class Element>
void add_weighted(const WeightedSumArguments& arguments) {
  constexpr std::int64_t kChunk = 4;  // number of vectors of eight elements
  const std::int64_t step = kLanes * Element::kBytes;
  const auto add = [&](auto&& read, std::int64_t position, Doubles& sum)
                       __attribute__((always_inline)) {
                         read(arguments.inputs[0] + position, sum);
                         sum *= arguments.weights[0];
                         for (std::int64_t input = 1; input < arguments.input_count; ++input) {
                           Doubles numbers;
                           read(arguments.inputs[input] + position, numbers);
                           sum += numbers * arguments.weights[input];
                         }
                       };
  std::int64_t offset = 0;
  std::int64_t remaining = arguments.count;
  for (; remaining >= kChunk * kLanes; remaining -= kChunk * kLanes, offset += kChunk * step) {
    Doubles sums[kChunk];
    for (std::int64_t part = 0; part < kChunk; ++part)
      add(Lanes<Element>::read, offset + part * step, sums[part]);
    for (std::int64_t output = 0; output < arguments.output_count; ++output)
      for (std::int64_t part = 0; part < kChunk; ++part)
        Lanes<Element>::write(sums[part], arguments.outputs[output] + offset + part * step);
  }
  for (; remaining > 0; remaining -= kLanes, offset += step) {
    PartialVector<Element> partial(remaining < kLanes ? remaining : kLanes);
    Doubles sum;
    add([&](const std::byte* from, Doubles& to)
            __attribute__((always_inline)) { partial.read(from, to); },
        offset, sum);
    for (std::int64_t output = 0; output < arguments.output_count; ++output)
      partial.write(sum, arguments.outputs[output] + offset);
  }
}

// Only floating-point types have Adasum kernels.
template <class Element>
struct AdasumRow {
  static constexpr AdasumKernels kRow = {};
};
template <class Element>
  requires requires { sizeof(Lanes<Element>); }
struct AdasumRow<Element> {
  static constexpr AdasumKernels kRow = {.square = compute_products<Element, true>,
                                         .product = compute_products<Element, false>,
                                         .add_weighted = add_weighted<Element>};
};

constexpr AdasumTable kAdasumKernels = kByDType<AdasumKernels, AdasumRow>;

}  // namespace
}  // namespace farandole
