// Adasum: a sum of vectors that reduces the components in the directions that the vectors share.
// The sum of two vectors is (Maleki et al., "Scaling Distributed Training with Adaptive Summation",
// MLSys 2021):
//   Adasum(a, b) = (1 − a·b / 2a·a) a + (1 − a·b / 2b·b) b
// where a coefficient is 1 if its vector is zero. Orthogonal vectors are added; parallel vectors of
// the same length are averaged. More than two vectors are combined in a tree: on each level,
// neighbours are paired in rank order. A last vector without a neighbour goes to the next level
// unchanged.
//
// All intermediate results are weighted sums of the inputs, so their dot products follow from the
// dot products of the inputs. Two passes over the inputs are therefore enough for any number of
// inputs. The first pass computes the dot products; the second pass adds the weighted inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/cpu/kernels.h"
#include "farandole/dtype.h"

namespace farandole {

// Returns the number of dot products of this many inputs. The dot product of the inputs i and j ≤ i
// is at index i (i + 1) / 2 + j.
constexpr std::size_t dot_product_count(std::size_t inputs) { return inputs * (inputs + 1) / 2; }

// Reads the dot products of a part of the inputs from `from`, which need not be aligned, and adds
// them to `sums`.
void add_partial_dot_products(std::span<double> sums, const std::byte* from);

// Computes the weight of each input in the result from the dot products of whole inputs, and
// multiplies each weight by `scale`.
// - If inputs cancel each other out to less than 2^-16 of their length, the remainder counts as
//   zero, because rounding errors determine its direction. A float64 vector shorter than 10^-154
//   also counts as zero.
// - If an input contains an infinity or a NaN, all results are NaN. They may also be NaN if a
//   float64 vector is longer than 10^154.
void compute_adasum_weights(std::span<const double> products, double scale,
                            std::span<double> weights);

// The two passes of an Adasum. Each call processes the same part of all inputs. A null pointer
// means an input of zeros; at least one input must not be null, except if `count` is 0. All results
// are computed in float64, in an order that depends only on `count`. So every processor computes
// the same bits, except those of NaNs. Any thread may call these functions; no alignment is needed.
class Adasum {
 public:
  static bool supports(DType dtype);  // true for float16, bfloat16, float32, float64

  explicit Adasum(DType dtype, const InstructionSet& set = instruction_sets().front());

  // Adds the dot products of the first `count` elements to `products`.
  void add_dot_products(std::span<const std::byte* const> inputs, std::int64_t count,
                        std::span<double> products) const;
  // outputs[k][i] = weights[0] × inputs[0][i] + weights[1] × inputs[1][i] + …, rounded once at the
  // end; half types are rounded to float32 first. An output may be the same memory as an input, but
  // must not overlap it partly.
  void add_weighted(std::span<const std::byte* const> inputs, std::span<const double> weights,
                    std::span<std::byte* const> outputs, std::int64_t count) const;

 private:
  const AdasumKernels* kernels_;
  std::int64_t element_bytes_;
};

}  // namespace farandole
