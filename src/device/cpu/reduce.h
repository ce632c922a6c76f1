// Element-wise reductions on the CPU. The kernels read all inputs chunk by chunk in rank order and
// combine them in registers, with the widest vectors of the processor. The result does not depend
// on the width of the vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "farandole/dtype.h"
#include "farandole/operation.h"
#include "farandole/status.h"

namespace farandole {

// Returns kFixCall, with advice, if the reduction is not defined for this dtype.
Status check_reduction(DType dtype, ReduceOp op);

struct Reduction {
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int divisor = 1;       // averages divide the sum by this number
  double prescale = 1;   // applied to every input
  double postscale = 1;  // applied to the result
};

// outputs[k][i] = postscale × (prescale × inputs[0][i] op prescale × inputs[1][i] op …) for all i <
// count and every k. Any thread may call it. Adasum is not element-wise: see adasum.h.
// - There must be at least one input and one output, and check_reduction() must be ok. No pointer
//   may be null, except inputs of Adasum. No alignment is needed.
// - An output may be the same memory as an input, but must not overlap it partly.
// - float16 and bfloat16 are scaled and accumulated in float32 and rounded once, to nearest even.
//   float32 and float64 are scaled in their own type.
// - Integers wrap in two's complement. Their average is the 64-bit sum, divided and truncated
//   toward zero. Each scaling is done in float64, truncated toward zero and clamped to the range of
//   the type.
// - bool: sum and max are "or", product and min are "and"; any non-zero byte counts as true. A
//   scale of 0 makes everything false; other scales change nothing.
// - If any input is NaN, min and max are NaN. The bits of a NaN result are unspecified.
// - All other results have the same bits on every processor, at every address and for every count.
// - A scale of 1 does not change the bits of any value.
// Reads inputs.size() × count elements and writes outputs.size() × count.
void reduce(const Reduction& reduction, std::span<const std::byte* const> inputs,
            std::span<std::byte* const> outputs, std::int64_t count);

// The same as reduce(), but with one chosen element of instruction_sets() (kernels.h). For tests
// and measurements.
struct InstructionSet;
void reduce_with(const InstructionSet& set, const Reduction& reduction,
                 std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
                 std::int64_t count);

}  // namespace farandole
