// Adasum: a sum of vectors in which what they have in common counts less. Of two, with
// coefficients that are 1 for a vector of zeros (Maleki et al., "Scaling Distributed Training with
// Adaptive Summation", MLSys 2021):
//   Adasum(a, b) = (1 − a·b / 2a·a) a + (1 − a·b / 2b·b) b
// Orthogonal vectors are added; of parallel ones of one length comes the average. Of more than two
// it is taken in a tree: neighbours are paired in rank order, level by level, and an odd one at the
// end goes up as it is.
//
// All results on the way up are sums of the inputs with weights, and their dot products follow from
// those of the inputs. So two passes over the inputs are enough, whatever their number: one takes
// the dot products, part by part, the other adds with the weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/cpu/kernels.h"
#include "farandole/dtype.h"

namespace farandole {

// How many dot products there are: of input i with input j ≤ i at i (i + 1) / 2 + j.
constexpr std::size_t dot_products_of(std::size_t inputs) { return inputs * (inputs + 1) / 2; }

// The dot products of whole inputs → the weight of each in the result, times `scale`.
// - What is left of inputs that cancel one another out, to less than 2^-16 of their length, counts
//   as zeros: its direction is lost in rounding. So does a float64 vector shorter than 10^-154.
// - After an infinity or a NaN in an input all results are NaN; so may they be after a float64
//   vector longer than 10^154.
void find_adasum_weights(std::span<const double> products, double scale, std::span<double> weights);

// The two passes over a part of all inputs, of which a null pointer stands for zeros; one is there
// at least, if there are elements. All is computed in float64; in which order follows from `count`
// alone, so the result is the same bit by bit on every processor (but which NaN is not said). Any
// thread; no alignment is needed.
class Adasum {
 public:
  static bool exists_for(DType dtype);  // float16, bfloat16, float32, float64

  explicit Adasum(DType dtype, const InstructionSet& set = instruction_sets().front());

  // Adds the dot products of these elements to those of others.
  void add_dot_products(std::span<const std::byte* const> inputs, std::int64_t count,
                        std::span<double> products) const;
  // outputs[k][i] = weights[0] × inputs[0][i] + weights[1] × inputs[1][i] + …, rounded at the end,
  // half types by way of float32. An output may be the same memory as an input, but must not
  // overlap it partly.
  void add_weighted(std::span<const std::byte* const> inputs, std::span<const double> weights,
                    std::span<std::byte* const> outputs, std::int64_t count) const;

 private:
  const AdasumKernels* kernels_;
  std::int64_t element_bytes_;
};

}  // namespace farandole
