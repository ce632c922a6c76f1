#include "device/cpu/reduce.h"

#include <cmath>
#include <vector>

#include "base/check.h"
#include "base/format.h"
#include "device/cpu/adasum.h"
#include "device/cpu/float_mode.h"
#include "device/cpu/kernels.h"

namespace farandole {
namespace {

// Returns null if the reduction is not defined for the dtype. Both averages use the same kernel,
// because only their divisors differ.
Kernel kernel_for(const InstructionSet& set, const Reduction& reduction, std::size_t inputs) {
  const auto dtype = static_cast<std::size_t>(reduction.dtype);
  const ReduceOp op =
      reduction.op == ReduceOp::kAverageOfPresent ? ReduceOp::kAverage : reduction.op;
  const KernelVariants& row = (*set.kernels)[dtype][static_cast<std::size_t>(op)];
  const bool scaled = reduction.prescale != 1 || reduction.postscale != 1;
  const Kernel kernel = scaled ? row.scaled : inputs == 2 ? row.unscaled_two_inputs : row.unscaled;
  return kernel != nullptr ? kernel : integer_kernel(reduction.dtype, op);
}

void reduce_by_adasum(const InstructionSet& set, const Reduction& reduction,
                      std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
                      std::int64_t count) {
  const Adasum adasum(reduction.dtype, set);
  std::vector<double> products(dot_product_count(inputs.size()));
  std::vector<double> weights(inputs.size());
  adasum.add_dot_products(inputs, count, products);
  compute_adasum_weights(products, reduction.prescale * reduction.postscale, weights);
  adasum.add_weighted(inputs, weights, outputs, count);
}

}  // namespace

Status check_reduction(DType dtype, ReduceOp op) {
  if (op == ReduceOp::kAdasum) {
    if (Adasum::supports(dtype)) return {};
    return Status::fix_call(format_text(
        "the {} of {} values is not defined; convert the tensor to float32 first, or use sum",
        name_of(op), row_of(dtype).name));
  }
  if (kernel_for(instruction_sets().back(), {.dtype = dtype, .op = op}, 1) != nullptr) return {};
  return Status::fix_call(
      format_text("the {} of {} values is not defined; use min (true if all are true) or max (true "
                  "if any is), or convert the tensor to float32 first",
                  name_of(op), row_of(dtype).name));
}

void reduce_with(const InstructionSet& set, const Reduction& reduction,
                 std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
                 std::int64_t count) {
  CHECK(!inputs.empty() && !outputs.empty(), "there is at least one input and one output");
  CHECK(std::isfinite(reduction.prescale) && std::isfinite(reduction.postscale),
        "scales are finite numbers");
  if (reduction.op == ReduceOp::kAdasum)
    return reduce_by_adasum(set, reduction, inputs, outputs, count);
  const Kernel kernel = kernel_for(set, reduction, inputs.size());
  CHECK(kernel != nullptr, "check_reduction() comes first");
  CHECK(reduction.divisor > 0, "a sum is divided by the number of members");
  const StandardFloatMode mode;
  kernel({.inputs = inputs.data(),
          .input_count = static_cast<std::int64_t>(inputs.size()),
          .outputs = outputs.data(),
          .output_count = static_cast<std::int64_t>(outputs.size()),
          .count = count,
          .divisor = reduction.divisor,
          .prescale = reduction.prescale,
          .postscale = reduction.postscale});
}

void reduce(const Reduction& reduction, std::span<const std::byte* const> inputs,
            std::span<std::byte* const> outputs, std::int64_t count) {
  reduce_with(instruction_sets().front(), reduction, inputs, outputs, count);
}

}  // namespace farandole
