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

struct InstructionSet {
  const char* name;
  const KernelTable* kernels;
};

// Those that this processor and this operating system have, the fastest first.
std::span<const InstructionSet> instruction_sets();

}  // namespace farandole
