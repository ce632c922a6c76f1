// Element-wise reductions on the CPU: all inputs are read block by block in rank order and combined
// in a block that stays in the first-level cache. The result does not depend on who computes it.
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

// outputs[k][i] = inputs[0][i] op inputs[1][i] op … for all i < count and every k. Any thread.
// - At least one input and one output; check_reduction() must hold. No alignment is needed.
// - An output may be the same memory as an input, but must not overlap it partly.
// - float16 and bfloat16 accumulate in float32 and are rounded once, to nearest even.
// - Integers wrap in two's complement. Their average is the 64-bit sum divided toward zero.
// - bool: sum and max are "or", product and min are "and"; any non-zero byte counts as true.
// - A NaN in any input makes min and max NaN.
// Reads inputs.size() × count elements, writes outputs.size() × count.
void reduce(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
            std::span<std::byte* const> outputs, std::int64_t count);

}  // namespace farandole
