// The kernels of reduce(). Their source is compiled once for each instruction set, and reduce()
// chooses an instruction set at run time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "farandole/dtype.h"
#include "farandole/operation.h"

namespace farandole {

// The arguments of one kernel call. The pointers are byte pointers, because user memory may be
// unaligned. They are not spans, because a kernel must not call inline functions of other headers
// (see vector_kernels.h).
struct KernelArguments {
  const std::byte* const* inputs;
  std::int64_t input_count;
  std::byte* const* outputs;
  std::int64_t output_count;
  std::int64_t count;
  int divisor;
  double prescale;
  double postscale;
};
using Kernel = void (*)(const KernelArguments&);

// The kernels of one dtype and one reduction. A pointer is null if there is no such kernel.
struct KernelVariants {
  Kernel unscaled = nullptr;             // if both scales are 1
  Kernel unscaled_two_inputs = nullptr;  // if both scales are 1 and there are two inputs
  Kernel scaled = nullptr;               // for any scales
};
using KernelsOfDType = std::array<KernelVariants, kReduceOpNames.size()>;  // indexed by ReduceOp
using KernelTable = std::array<KernelsOfDType, kDTypes.size()>;            // indexed by DType

// Returns the kernel that averages or scales integers, or null if the reduction is not defined for
// the dtype. All processors use the same kernel. Vectors of more elements would hardly make it
// faster, because it spends most of its time on the division and rounding of each element.
Kernel integer_kernel(DType dtype, ReduceOp op);

// The dot products of the two inputs `left` and the two inputs `right`, in float64:
// left[0]·right[0], left[0]·right[1], left[1]·right[0] and left[1]·right[1].
struct ProductArguments {
  const std::byte* left[2];
  const std::byte* right[2];  // equal to `left` for `square`
  std::int64_t count;
  double* products;  // output: 4 products
};
// Arguments of the weighted sum of the inputs, computed in float64 and rounded at the end.
struct WeightedSumArguments {
  const std::byte* const* inputs;
  const double* weights;
  std::int64_t input_count;
  std::byte* const* outputs;
  std::int64_t output_count;
  std::int64_t count;
};
struct AdasumKernels {
  void (*square)(const ProductArguments&) = nullptr;
  void (*product)(const ProductArguments&) = nullptr;
  void (*add_weighted)(const WeightedSumArguments&) = nullptr;
};
using AdasumTable = std::array<AdasumKernels, kDTypes.size()>;  // indexed by DType

struct InstructionSet {
  const char* name;
  const KernelTable* kernels;
  const AdasumTable* adasum;
};

// The instruction sets that this processor and this operating system support, the fastest first.
std::span<const InstructionSet> instruction_sets();

}  // namespace farandole
