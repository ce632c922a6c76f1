// The source of the vector kernels. Each file that includes this header is compiled for one
// instruction set and exports kVectorKernels under its own name. All code here is in an unnamed
// namespace or always inlined, and calls no inline function of a standard header. The reason is
// that the linker keeps only one copy of an inline function for the whole program. That copy could
// contain instructions that older processors cannot run. The test unit.device_symbols checks this
// rule.
#pragma once

#include <type_traits>

#include "device/cpu/elements.h"
#include "device/cpu/kernels.h"

namespace farandole {
namespace {

// The number of registers in a chunk of one input. A chunk has 256 bytes if a register has 64 or 32
// bytes, and 128 bytes if a register has 16 bytes. If another core has just written the data,
// chunks of 128 bytes take 20 % longer on an AMD EPYC, both for sums and for larger computations.
constexpr int kRegistersPerChunk = kWidth == 64 ? 4 : 8;

struct Sum {
  template <class Lanes>
  [[gnu::always_inline]] static Lanes combine(Lanes a, Lanes b) {
    return a + b;
  }
};
// The same as Sum: the kernel divides after the last input.
struct Average : Sum {};
struct Product {
  template <class Lanes>
  [[gnu::always_inline]] static Lanes combine(Lanes a, Lanes b) {
    return a * b;
  }
};
// If `a` or `b` is a NaN, the result is a NaN. A comparison with a NaN is false and selects `b`. So
// the code selects `a` explicitly if `a` is a NaN.
struct Min {
  template <class Lanes>
  [[gnu::always_inline]] static Lanes combine(Lanes a, Lanes b) {
    return ((a < b) | (a != a)) ? a : b;
  }
};
struct Max {
  template <class Lanes>
  [[gnu::always_inline]] static Lanes combine(Lanes a, Lanes b) {
    return ((a > b) | (a != a)) ? a : b;
  }
};
struct Or {
  template <class Lanes>
  [[gnu::always_inline]] static Lanes combine(Lanes a, Lanes b) {
    return a | b;
  }
};
struct And {
  template <class Lanes>
  [[gnu::always_inline]] static Lanes combine(Lanes a, Lanes b) {
    return a & b;
  }
};

template <class Element, class Op, bool kScaled>
struct Chunk {
  using Lane = typename Element::Lane;
  static constexpr int kSums = kRegistersPerChunk * Element::kParts;
  static constexpr int kBytes = kRegistersPerChunk * kWidth;

  Vector<Lane> sums[kSums];

  [[gnu::always_inline]] void read(const std::byte* from, const KernelArguments& arguments) {
    for (int index = 0; index < kRegistersPerChunk; ++index)
      Element::widen(from + index * kWidth, sums + index * Element::kParts);
    if constexpr (kScaled)
      for (Vector<Lane>& sum : sums) sum *= static_cast<Lane>(arguments.prescale);
  }
  [[gnu::always_inline]] void combine(const std::byte* from, const KernelArguments& arguments) {
    Chunk next;
    next.read(from, arguments);
    for (int index = 0; index < kSums; ++index)
      sums[index] = Op::combine(sums[index], next.sums[index]);
  }
  [[gnu::always_inline]] void finish(const KernelArguments& arguments) {
    if constexpr (std::is_same_v<Op, Average>)
      for (Vector<Lane>& sum : sums) sum /= static_cast<Lane>(arguments.divisor);
    if constexpr (kScaled)
      for (Vector<Lane>& sum : sums) sum *= static_cast<Lane>(arguments.postscale);
  }
  // Writes the chunk to every output at `offset`.
  [[gnu::always_inline]] void write(const KernelArguments& arguments, std::int64_t offset) const {
    decltype(Element::narrow(sums)) results[kRegistersPerChunk];
    for (int index = 0; index < kRegistersPerChunk; ++index)
      results[index] = Element::narrow(sums + index * Element::kParts);
    std::int64_t output = 0;
    do {
      std::byte* const to = arguments.outputs[output] + offset;
      for (int index = 0; index < kRegistersPerChunk; ++index)
        store(to + index * kWidth, results[index]);
    } while (++output < arguments.output_count);
  }
};

// Copies the last bytes of an input into a chunk. If there are 4 or 8 bytes, stores them as one
// whole register. Otherwise the later load of this register would have to wait for several smaller
// stores.
[[gnu::always_inline]] inline void copy_last_bytes(std::byte* memory, const std::byte* from,
                                                   std::size_t size) {
  if (size != 4 && size != 8) {
    __builtin_memcpy(memory, from, size);
    return;
  }
  Vector<std::uint64_t> last_bytes = {};
  if (size == 4) {
    std::uint32_t word = 0;
    __builtin_memcpy(&word, from, sizeof(word));
    last_bytes[0] = word;
  } else {
    std::uint64_t word = 0;
    __builtin_memcpy(&word, from, sizeof(word));
    last_bytes[0] = word;
  }
  __builtin_memcpy(memory, &last_bytes, sizeof(last_bytes));
}

// Reduces the last elements, which do not fill a chunk. A buffer of a whole chunk takes the place
// of each input and output.
template <class Element, class Op, bool kScaled>
[[gnu::noinline]] void reduce_last_elements(const KernelArguments& arguments, std::int64_t offset,
                                            std::int64_t bytes) {
  using LastChunk = Chunk<Element, Op, kScaled>;
  const auto size = static_cast<std::size_t>(bytes);
  alignas(kWidth) std::byte memory[LastChunk::kBytes] = {};
  LastChunk last;
  copy_last_bytes(memory, arguments.inputs[0] + offset, size);
  last.read(memory, arguments);
  for (std::int64_t input = 1; input < arguments.input_count; ++input) {
    copy_last_bytes(memory, arguments.inputs[input] + offset, size);
    last.combine(memory, arguments);
  }
  last.finish(arguments);
  std::byte* const result = memory;
  KernelArguments to_memory = arguments;
  to_memory.outputs = &result;
  to_memory.output_count = 1;
  last.write(to_memory, 0);
  for (std::int64_t output = 0; output < arguments.output_count; ++output)
    __builtin_memcpy(arguments.outputs[output] + offset, memory, size);
}

// kInputs is 2, or 0 for any number of inputs. A chunk of an output is written only after the same
// chunk of all inputs was read, so an output may be the memory of an input.
template <class Element, class Op, bool kScaled, int kInputs>
void reduce_chunks(const KernelArguments& arguments) {
  using FullChunk = Chunk<Element, Op, kScaled>;
  const std::int64_t bytes = arguments.count * Element::kBytes;
  const std::byte* const first = arguments.inputs[0];
  const std::byte* const second = kInputs == 2 ? arguments.inputs[1] : nullptr;
  std::int64_t offset = 0;
  for (; offset + FullChunk::kBytes <= bytes; offset += FullChunk::kBytes) {
    FullChunk chunk;
    chunk.read(first + offset, arguments);
    if constexpr (kInputs == 2) {
      chunk.combine(second + offset, arguments);
    } else {
      for (std::int64_t input = 1; input < arguments.input_count; ++input)
        chunk.combine(arguments.inputs[input] + offset, arguments);
    }
    chunk.finish(arguments);
    chunk.write(arguments, offset);
  }
  if (offset < bytes) reduce_last_elements<Element, Op, kScaled>(arguments, offset, bytes - offset);
}

template <class Element, class Op>
constexpr KernelVariants kUnscaled = {.unscaled = reduce_chunks<Element, Op, false, 0>,
                                      .unscaled_two_inputs = reduce_chunks<Element, Op, false, 2>};
template <class Element, class Op>
constexpr KernelVariants kFloating = {.unscaled = reduce_chunks<Element, Op, false, 0>,
                                      .unscaled_two_inputs = reduce_chunks<Element, Op, false, 2>,
                                      .scaled = reduce_chunks<Element, Op, true, 0>};

// Indexed by ReduceOp.
template <class Element>
struct VectorRow {
  static constexpr KernelsOfDType kRow = {
      kFloating<Element, Average>, kFloating<Element, Sum>, KernelVariants{},
      kFloating<Element, Min>,     kFloating<Element, Max>, kFloating<Element, Product>};
};
// Sums and products of signed integers are computed with unsigned integers, which wrap and give the
// same bits.
template <class T>
  requires std::is_integral_v<T>
struct VectorRow<NumberElement<T>> {
  using Wrapping = NumberElement<std::make_unsigned_t<T>>;
  static constexpr KernelsOfDType kRow = {KernelVariants{},
                                          kUnscaled<Wrapping, Sum>,
                                          KernelVariants{},
                                          kUnscaled<NumberElement<T>, Min>,
                                          kUnscaled<NumberElement<T>, Max>,
                                          kUnscaled<Wrapping, Product>};
};
template <>
struct VectorRow<Bool> {
  static constexpr KernelsOfDType kRow = {KernelVariants{},    kUnscaled<Bool, Or>,
                                          KernelVariants{},    kUnscaled<Bool, And>,
                                          kUnscaled<Bool, Or>, kUnscaled<Bool, And>};
};

constexpr KernelTable kVectorKernels = kByDType<KernelsOfDType, VectorRow>;

}  // namespace
}  // namespace farandole
