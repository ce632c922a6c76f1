// The kernels behind reduce(): the same source, compiled once for each set of instructions that
// processors of one family may have. Which one runs is chosen when the program runs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "farandole/dtype.h"
#include "farandole/operation.h"

namespace farandole {

// What one call of a kernel gets. Byte pointers, because user memory may be unaligned. Plain ones,
// because kernels call no inline function of other headers (see vector_kernels.h).
struct KernelJob {
  const std::byte* const* inputs;
  std::int64_t input_count;
  std::byte* const* outputs;
  std::int64_t output_count;
  std::int64_t count;
  int divisor;
  double prescale;
  double postscale;
};
using Kernel = void (*)(const KernelJob&);

// For one dtype and one op; null where there is no such kernel.
struct KernelRow {
  Kernel plain = nullptr;   // both scales are 1
  Kernel pair = nullptr;    // the same, with exactly two inputs
  Kernel scaled = nullptr;  // any scales
};
using KernelsOfDType = std::array<KernelRow, kReduceOpNames.size()>;  // indexed by ReduceOp
using KernelTable = std::array<KernelsOfDType, kDTypes.size()>;       // indexed by DType

// Averages and scales of integers take one way on all processors: divisions and roundings per
// element would hide what vectors save. Null where a combination has no meaning.
Kernel integer_kernel(DType dtype, ReduceOp op);

// The dot products of two inputs with two, that is left[0]·right[0], left[0]·right[1],
// left[1]·right[0] and left[1]·right[1], in float64.
struct ProductJob {
  const std::byte* left[2];
  const std::byte* right[2];  // the same as on the left for `square`
  std::int64_t count;
  double* products;  // 4 of them, written
};
// The sum of the inputs, each times its weight, in float64 and rounded at the end.
struct WeightedJob {
  const std::byte* const* inputs;
  const double* weights;
  std::int64_t input_count;
  std::byte* const* outputs;
  std::int64_t output_count;
  std::int64_t count;
};
struct AdasumKernels {
  void (*square)(const ProductJob&) = nullptr;
  void (*product)(const ProductJob&) = nullptr;
  void (*add_weighted)(const WeightedJob&) = nullptr;
};
using AdasumTable = std::array<AdasumKernels, kDTypes.size()>;  // indexed by DType

struct InstructionSet {
  const char* name;
  const KernelTable* kernels;
  const AdasumTable* adasum;
};

// Those that this processor and this operating system have, the fastest first.
std::span<const InstructionSet> instruction_sets();

}  // namespace farandole
