// Element-wise reductions on the CPU: all inputs are read chunk by chunk in rank order and combined
// in registers, by the widest vectors that the processor has. The result does not depend on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "farandole/dtype.h"
#include "farandole/operation.h"
#include "farandole/status.h"

namespace farandole {

// kFixCall, saying what to do instead, for a combination that has no meaning.
Status check_reduction(DType dtype, ReduceOp op);

struct Reduction {
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int divisor = 1;       // of the averages: the sum is divided by this
  double prescale = 1;   // of every input
  double postscale = 1;  // of the result
};

// outputs[k][i] = postscale × (prescale × inputs[0][i] op prescale × inputs[1][i] op …) for all
// i < count and every k. Any thread. Adasum is not element by element: see adasum.h.
// - At least one input and one output, none of them null, but for inputs of Adasum;
// check_reduction() must hold. No alignment is needed.
// - An output may be the same memory as an input, but must not overlap it partly.
// - float16 and bfloat16 are scaled and accumulated in float32 and rounded once, to nearest even.
//   float32 and float64 are scaled in their own type.
// - Integers wrap in two's complement. Their average is the 64-bit sum divided toward zero. Each
//   scaling is done in float64 and cut off toward zero, at the ends of the type.
// - bool: sum and max are "or", product and min are "and"; any non-zero byte counts as true. With
//   0 as a scale nothing is true, with another one nothing changes.
// - A NaN in any input makes min and max NaN. Which NaN a result is, is not said.
// - All else is the same bit by bit on every processor, at every place and in every length.
// - With 1 as a scale the values are not touched, bit by bit.
// Reads inputs.size() × count elements, writes outputs.size() × count.
void reduce(const Reduction& reduction, std::span<const std::byte* const> inputs,
            std::span<std::byte* const> outputs, std::int64_t count);

// The same with one of instruction_sets() (kernels.h), for tests and measurements.
struct InstructionSet;
void reduce_with(const InstructionSet& set, const Reduction& reduction,
                 std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
                 std::int64_t count);

}  // namespace farandole
