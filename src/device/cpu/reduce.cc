#include "device/cpu/reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/check.h"
#include "device/cpu/half.h"

namespace farandole {
namespace {

// Elements per block: the accumulators (at most 8 bytes each) fill a quarter of a 32 KiB L1 cache.
constexpr std::int64_t kBlock = 1024;

// What one call of a kernel gets. Byte pointers, because user memory may be unaligned.
struct Job {
  const Reduction& reduction;
  std::span<const std::byte* const> inputs;
  std::span<std::byte* const> outputs;
  std::int64_t count;
};
using Kernel = void (*)(const Job&);

// Toward zero, and not beyond the ends of the type. Not for NaN.
template <class T>
T cut_off(double value) {
  using Limits = std::numeric_limits<T>;
  constexpr auto kSmallest = static_cast<double>(Limits::min());
  constexpr auto kHalf = static_cast<T>(Limits::max() / 2 + 1);
  constexpr double kTooLarge = 2.0 * static_cast<double>(kHalf);  // a power of two, so exact
  if (value >= kTooLarge) return Limits::max();
  return value <= kSmallest ? Limits::min() : static_cast<T>(value);
}

// An element type in memory, the type in which it is combined, and how that one is scaled.
template <class T, class Wide = T>
struct Number {
  using Stored = T;
  using Accumulator = Wide;
  static Wide widen(T value) { return static_cast<Wide>(value); }
  static T narrow(Wide value) { return static_cast<T>(value); }
  static Wide scale(Wide value, double factor) {
    if constexpr (std::is_integral_v<T>)  // 1 takes no way through float64
      return factor == 1 ? value : cut_off<T>(static_cast<double>(value) * factor);
    else
      return value * static_cast<Wide>(factor);
  }
};
struct Bool {
  using Stored = std::uint8_t;
  using Accumulator = std::uint8_t;
  static std::uint8_t widen(std::uint8_t value) { return value != 0 ? 1 : 0; }
  static std::uint8_t narrow(std::uint8_t value) { return value; }
  static std::uint8_t scale(std::uint8_t value, double factor) { return factor != 0 ? value : 0; }
};
struct Half {
  using Stored = Float16;
  using Accumulator = float;
  static float widen(Float16 value) { return to_float(value); }
  static Float16 narrow(float value) { return to_float16(value); }
  static float scale(float value, double factor) { return value * static_cast<float>(factor); }
};
struct Brain {
  using Stored = BFloat16;
  using Accumulator = float;
  static float widen(BFloat16 value) { return to_float(value); }
  static BFloat16 narrow(float value) { return to_bfloat16(value); }
  static float scale(float value, double factor) { return value * static_cast<float>(factor); }
};

// Signed overflow is undefined and small unsigned types promote to int: compute in a wide unsigned
// type, which wraps, and cut off.
template <class T>
using Wrapping = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

struct Sum {
  template <class T>
  static T combine(T a, T b) {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
    else
      return a + b;
  }
};
struct Product {
  template <class T>
  static T combine(T a, T b) {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    else
      return a * b;
  }
};
// If either is a NaN, so is the result: b wins every comparison with a NaN in it, unless a is one.
struct Min {
  template <class T>
  static T combine(T a, T b) {
    return static_cast<T>(((a < b) | (a != a)) ? a : b);
  }
};
struct Max {
  template <class T>
  static T combine(T a, T b) {
    return static_cast<T>(((a > b) | (a != a)) ? a : b);
  }
};
// Sum first; the kernel divides when all inputs are in.
struct Average : Sum {};

struct Or {
  static std::uint8_t combine(std::uint8_t a, std::uint8_t b) { return a | b; }
};
struct And {
  static std::uint8_t combine(std::uint8_t a, std::uint8_t b) { return a & b; }
};

template <class T>
T load(const std::byte* from, std::int64_t index) {
  T value;
  std::memcpy(&value, from + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class T>
void store(std::byte* to, std::int64_t index, T value) {
  std::memcpy(to + index * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

// Whether anything is scaled is known when this is compiled: the loops without it stay as fast.
template <class Element, bool Scaled>
typename Element::Accumulator load_element(const std::byte* from, std::int64_t index,
                                           double prescale) {
  const auto value = Element::widen(load<typename Element::Stored>(from, index));
  if constexpr (Scaled)
    return Element::scale(value, prescale);
  else
    return value;
}

// One block: the accumulators are written to memory only when all inputs have been read, so that
// an output may be the memory of an input.
template <class Element, class Op, bool Scaled>
void reduce_block(const Job& job, std::int64_t begin, std::int64_t count) {
  using Stored = typename Element::Stored;
  using Accumulator = typename Element::Accumulator;
  const std::int64_t offset = begin * static_cast<std::int64_t>(sizeof(Stored));
  std::array<Accumulator, kBlock> block;
  Accumulator* const __restrict sums = block.data();

  const std::byte* const __restrict first = job.inputs[0] + offset;
  for (std::int64_t i = 0; i < count; ++i)
    sums[i] = load_element<Element, Scaled>(first, i, job.reduction.prescale);
  for (const std::byte* input : job.inputs.subspan(1)) {
    const std::byte* const __restrict next = input + offset;
    for (std::int64_t i = 0; i < count; ++i)
      sums[i] =
          Op::combine(sums[i], load_element<Element, Scaled>(next, i, job.reduction.prescale));
  }
  if constexpr (std::is_same_v<Op, Average>) {
    const auto divisor = static_cast<Accumulator>(job.reduction.divisor);
    for (std::int64_t i = 0; i < count; ++i) sums[i] /= divisor;
  }
  if constexpr (Scaled)
    for (std::int64_t i = 0; i < count; ++i)
      sums[i] = Element::scale(sums[i], job.reduction.postscale);
  std::byte* const __restrict result = job.outputs[0] + offset;
  for (std::int64_t i = 0; i < count; ++i) store<Stored>(result, i, Element::narrow(sums[i]));
  for (std::byte* output : job.outputs.subspan(1))
    std::memcpy(output + offset, result, static_cast<std::size_t>(count) * sizeof(Stored));
}

template <class Element, class Op>
void reduce_all(const Job& job) {
  const bool scaled = job.reduction.prescale != 1 || job.reduction.postscale != 1;
  const auto block = scaled ? reduce_block<Element, Op, true> : reduce_block<Element, Op, false>;
  for (std::int64_t begin = 0; begin < job.count; begin += kBlock)
    block(job, begin, std::min(kBlock, job.count - begin));
}

// Indexed by ReduceOp; null where the combination has no meaning.
using Kernels = std::array<Kernel, kReduceOpNames.size()>;

template <class Element, class ForAverage = Element>
constexpr Kernels kNumberKernels = {reduce_all<Element, Sum>, reduce_all<ForAverage, Average>,
                                    reduce_all<Element, Min>, reduce_all<Element, Max>,
                                    reduce_all<Element, Product>};
template <class T>
constexpr Kernels kIntegerKernels = kNumberKernels<Number<T>, Number<T, std::int64_t>>;

constexpr Kernels kBoolKernels = {reduce_all<Bool, Or>, nullptr, reduce_all<Bool, And>,
                                  reduce_all<Bool, Or>, reduce_all<Bool, And>};

struct ReducerRow {
  DType dtype;
  Kernels kernels;
};

// Indexed by DType.
constexpr std::array<ReducerRow, kDTypes.size()> kReducers = {{
    {DType::kBool, kBoolKernels},
    {DType::kInt8, kIntegerKernels<std::int8_t>},
    {DType::kUInt8, kIntegerKernels<std::uint8_t>},
    {DType::kInt16, kIntegerKernels<std::int16_t>},
    {DType::kUInt16, kIntegerKernels<std::uint16_t>},
    {DType::kInt32, kIntegerKernels<std::int32_t>},
    {DType::kInt64, kIntegerKernels<std::int64_t>},
    {DType::kFloat16, kNumberKernels<Half>},
    {DType::kBFloat16, kNumberKernels<Brain>},
    {DType::kFloat32, kNumberKernels<Number<float>>},
    {DType::kFloat64, kNumberKernels<Number<double>>},
}};

constexpr bool rows_are_in_order() {
  for (std::size_t index = 0; index < kReducers.size(); ++index)
    if (kReducers[index].dtype != static_cast<DType>(index)) return false;
  return true;
}
static_assert(rows_are_in_order(), "the table is indexed by DType");

Kernel kernel_for(DType dtype, ReduceOp op) {
  return kReducers[static_cast<std::size_t>(dtype)].kernels[static_cast<std::size_t>(op)];
}

}  // namespace

Status check_reduction(DType dtype, ReduceOp op) {
  if (kernel_for(dtype, op) != nullptr) return {};
  return Status::fix_call(
      fmt::format("the {} of {} values is not defined; use min (true if all are true) or max (true "
                  "if any is), or convert the tensor to float32 first",
                  name_of(op), row_of(dtype).name));
}

void reduce(const Reduction& reduction, std::span<const std::byte* const> inputs,
            std::span<std::byte* const> outputs, std::int64_t count) {
  const Kernel kernel = kernel_for(reduction.dtype, reduction.op);
  CHECK(kernel != nullptr, "check_reduction() comes first");
  CHECK(!inputs.empty() && !outputs.empty(), "there is at least one input and one output");
  CHECK(reduction.divisor > 0, "a sum is divided by the number of members");
  CHECK(std::isfinite(reduction.prescale) && std::isfinite(reduction.postscale),
        "scales are finite numbers");
  kernel({reduction, inputs, outputs, count});
}

}  // namespace farandole
