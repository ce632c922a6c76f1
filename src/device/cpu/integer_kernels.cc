// Averages of integers and reductions of scaled integers. In this file, bool counts as an integer.
// The kernels work in blocks, so that the sums of a block stay in the first-level cache.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <type_traits>

#include "device/cpu/elements.h"
#include "device/cpu/kernels.h"

namespace farandole {
namespace {

// Elements per block. The accumulators, of at most 8 bytes each, take a quarter of a 32 KiB L1
// cache.
constexpr std::int64_t kBlockElements = 1024;

// Truncates toward zero and clamps to the range of the type. `value` must not be NaN.
template <class T>
T saturated_cast(double value) {
  using Limits = std::numeric_limits<T>;
  constexpr auto kSmallest = static_cast<double>(Limits::min());
  constexpr auto kHalf = static_cast<T>(Limits::max() / 2 + 1);
  constexpr double kTooLarge = 2.0 * static_cast<double>(kHalf);  // this power of two is exact
  if (value >= kTooLarge) return Limits::max();
  return value <= kSmallest ? Limits::min() : static_cast<T>(value);
}

// An integer type in memory, its wider accumulator type, and its scaling.
template <class T, class Wide = T>
struct Integer {
  using Stored = T;
  using Accumulator = Wide;
  static Wide widen(T value) { return value; }
  static Wide scale(Wide value, double factor) {  // a factor of 1 needs no conversion to float64
    return factor == 1 ? value : saturated_cast<T>(static_cast<double>(value) * factor);
  }
};
struct BoolElement {
  using Stored = std::uint8_t;
  using Accumulator = std::uint8_t;
  static std::uint8_t widen(std::uint8_t value) { return value != 0 ? 1 : 0; }
  static std::uint8_t scale(std::uint8_t value, double factor) { return factor != 0 ? value : 0; }
};

// Signed overflow is undefined, and small unsigned types promote to int. So sums and products are
// computed in a wide unsigned type, which wraps, and then truncated.
template <class T>
using Wrapping = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

struct Sum {
  template <class T>
  static T combine(T a, T b) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
  }
};
// The same as Sum. The kernel divides after the last input.
struct Average : Sum {};
struct Product {
  template <class T>
  static T combine(T a, T b) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
  }
};
struct Min {
  template <class T>
  static T combine(T a, T b) {
    return a < b ? a : b;
  }
};
struct Max {
  template <class T>
  static T combine(T a, T b) {
    return a > b ? a : b;
  }
};

template <class T>
T load_at(const std::byte* from, std::int64_t index) {
  T value;
  std::memcpy(&value, from + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class T>
void store_at(std::byte* to, std::int64_t index, T value) {
  std::memcpy(to + index * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

// Reduces one block. Writes the outputs only after all inputs have been read, because an output may
// be the memory of an input.
template <class Element, class Op>
void reduce_block(const KernelArguments& arguments, std::int64_t begin, std::int64_t count) {
  using Stored = typename Element::Stored;
  using Accumulator = typename Element::Accumulator;
  const std::int64_t offset = begin * static_cast<std::int64_t>(sizeof(Stored));
  const double prescale = arguments.prescale;
  const double postscale = arguments.postscale;
  std::array<Accumulator, kBlockElements> block;
  Accumulator* const __restrict sums = block.data();

  const std::byte* const __restrict first = arguments.inputs[0] + offset;
  for (std::int64_t i = 0; i < count; ++i)
    sums[i] = Element::scale(Element::widen(load_at<Stored>(first, i)), prescale);
  for (std::int64_t input = 1; input < arguments.input_count; ++input) {
    const std::byte* const __restrict next = arguments.inputs[input] + offset;
    for (std::int64_t i = 0; i < count; ++i)
      sums[i] =
          Op::combine(sums[i], Element::scale(Element::widen(load_at<Stored>(next, i)), prescale));
  }
  if constexpr (std::is_same_v<Op, Average>) {
    const auto divisor = static_cast<Accumulator>(arguments.divisor);
    for (std::int64_t i = 0; i < count; ++i) sums[i] /= divisor;
  }
  std::byte* const __restrict result = arguments.outputs[0] + offset;
  for (std::int64_t i = 0; i < count; ++i)
    store_at(result, i, static_cast<Stored>(Element::scale(sums[i], postscale)));
  for (std::int64_t output = 1; output < arguments.output_count; ++output)
    std::memcpy(arguments.outputs[output] + offset, result,
                static_cast<std::size_t>(count) * sizeof(Stored));
}

template <class Element, class Op>
void reduce_all(const KernelArguments& arguments) {
  for (std::int64_t begin = 0; begin < arguments.count; begin += kBlockElements)
    reduce_block<Element, Op>(arguments, begin, std::min(kBlockElements, arguments.count - begin));
}

using Kernels = std::array<Kernel, kReduceOpNames.size()>;  // indexed by ReduceOp

// Floating-point types have no integer kernels.
template <class Element>
struct IntegerRow {
  static constexpr Kernels kRow = {};
};
template <class T>
  requires std::is_integral_v<T>
struct IntegerRow<NumberElement<T>> {
  static constexpr Kernels kRow = {reduce_all<Integer<T, std::int64_t>, Average>,
                                   reduce_all<Integer<T>, Sum>,
                                   nullptr,
                                   reduce_all<Integer<T>, Min>,
                                   reduce_all<Integer<T>, Max>,
                                   reduce_all<Integer<T>, Product>};
};
template <>
struct IntegerRow<Bool> {
  static constexpr Kernels kRow = {nullptr,
                                   reduce_all<BoolElement, Max>,
                                   nullptr,
                                   reduce_all<BoolElement, Min>,
                                   reduce_all<BoolElement, Max>,
                                   reduce_all<BoolElement, Min>};
};

constexpr std::array<Kernels, kDTypes.size()> kIntegerKernels = kByDType<Kernels, IntegerRow>;

template <class Element>
struct BytesRow {
  static constexpr std::size_t kRow = Element::kBytes;
};
constexpr bool element_types_are_in_dtype_order() {
  for (std::size_t index = 0; index < kDTypes.size(); ++index)
    if (kByDType<std::size_t, BytesRow>[index] != kDTypes[index].bytes) return false;
  return true;
}
static_assert(element_types_are_in_dtype_order(), "the list of element types is indexed by DType");

}  // namespace

Kernel integer_kernel(DType dtype, ReduceOp op) {
  return kIntegerKernels[static_cast<std::size_t>(dtype)][static_cast<std::size_t>(op)];
}

}  // namespace farandole
