#include "device/cpu/adasum.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/check.h"
#include "device/cpu/float_mode.h"

namespace farandole {
namespace {

// Elements per block. The blocks of four inputs fit into the first-level cache.
constexpr std::int64_t kBlockElements = 2048;

// A squared length counts as zero if it is less than this fraction of the sum of the absolute
// values of its terms. For the length itself, this is a fraction of 2^-16. Rounding errors are much
// smaller: at most a fraction of about 2^-43 for a tensor of 64 MiB.
constexpr double kCancellationFraction = 0x1p-32;

constexpr std::size_t product_index(std::size_t a, std::size_t b) {
  return dot_product_count(std::max(a, b)) + std::min(a, b);
}

// The range of inputs that one intermediate result of the tree combines.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
};

class Tree {
 public:
  Tree(std::span<const double> products, std::span<double> weights)
      : products_(products), weights_(weights) {}

  void merge(Range a, Range b) {
    const double dot_product = product(a, b).value;
    const double coefficient_a = coefficient(dot_product, product(a, a));
    const double coefficient_b = coefficient(dot_product, product(b, b));
    for (std::size_t input = a.begin; input < a.end; ++input) weights_[input] *= coefficient_a;
    for (std::size_t input = b.begin; input < b.end; ++input) weights_[input] *= coefficient_b;
  }

 private:
  struct Product {
    double value = 0;
    double magnitude = 0;  // the sum of the terms' absolute values
  };

  Product product(Range a, Range b) const {
    Product sum;
    for (std::size_t i = a.begin; i < a.end; ++i)
      for (std::size_t j = b.begin; j < b.end; ++j) {
        const double term = weights_[i] * weights_[j] * products_[product_index(i, j)];
        sum.value += term;
        sum.magnitude += std::abs(term);
      }
    return sum;
  }

  static double coefficient(double dot_product, const Product& square) {
    const double smallest_square =
        std::max(kCancellationFraction * square.magnitude, std::numeric_limits<double>::min());
    return square.value < smallest_square ? 1 : 1 - dot_product / square.value / 2;
  }

  std::span<const double> products_;
  std::span<double> weights_;
};

// The indices of two inputs, or the same index twice if only one input remains.
struct Pair {
  std::size_t first = 0;
  std::size_t second = 0;
  bool operator==(const Pair&) const = default;
};

// Returns the first two inputs from index `begin` that are not null. If there is none, both indices
// are the number of inputs.
Pair next_pair(std::span<const std::byte* const> inputs, std::size_t begin) {
  const auto is_present = [](const std::byte* input) { return input != nullptr; };
  const auto first =
      std::find_if(inputs.begin() + static_cast<long>(begin), inputs.end(), is_present);
  if (first == inputs.end()) return {inputs.size(), inputs.size()};
  const auto second = std::find_if(first + 1, inputs.end(), is_present);
  return {static_cast<std::size_t>(first - inputs.begin()),
          static_cast<std::size_t>((second == inputs.end() ? first : second) - inputs.begin())};
}

// Adds the dot products of the inputs in `left` and the inputs in `right` to `sums`. `right` is the
// same pair as `left` or an earlier pair.
[[gnu::noinline]] void add_products(const AdasumKernels& kernels, ProductArguments& arguments,
                                    Pair left, Pair right, std::span<double> sums) {
  std::array<double, 4> products = {};
  arguments.products = products.data();
  (left == right ? kernels.square : kernels.product)(arguments);
  sums[product_index(left.first, right.first)] += products[0];
  if (left != right && right.first != right.second)
    sums[product_index(left.first, right.second)] += products[1];
  if (left.first == left.second) return;
  sums[product_index(left.second, right.first)] += products[2];
  if (right.first != right.second) sums[product_index(left.second, right.second)] += products[3];
}

[[gnu::noinline]] void add_unaligned(std::span<double> sums, const std::byte* from) {
  for (double& sum : sums) {
    double product = 0;
    std::memcpy(&product, from, sizeof(product));
    sum += product;
    from += sizeof(product);
  }
}

[[gnu::noinline]] void compute_weights(std::span<const double> products, double scale,
                                       std::span<double> weights) {
  const std::size_t inputs = weights.size();
  std::ranges::fill(weights, 1);
  Tree tree(products, weights);
  for (std::size_t width = 1; width < inputs; width *= 2)
    for (std::size_t begin = 0; begin + width < inputs; begin += 2 * width)
      tree.merge({begin, begin + width}, {begin + width, std::min(begin + 2 * width, inputs)});
  for (double& weight : weights) weight *= scale;
}

}  // namespace

void add_partial_dot_products(std::span<double> sums, const std::byte* from) {
  const StandardFloatMode mode;
  add_unaligned(sums, from);
}

void compute_adasum_weights(std::span<const double> products, double scale,
                            std::span<double> weights) {
  CHECK(products.size() == dot_product_count(weights.size()), "every input has all its products");
  const StandardFloatMode mode;
  compute_weights(products, scale, weights);
}

bool Adasum::supports(DType dtype) {
  return (*instruction_sets().back().adasum)[static_cast<std::size_t>(dtype)].square != nullptr;
}

Adasum::Adasum(DType dtype, const InstructionSet& set)
    : kernels_(&(*set.adasum)[static_cast<std::size_t>(dtype)]),
      element_bytes_(static_cast<std::int64_t>(row_of(dtype).bytes)) {
  CHECK(supports(dtype), "check_reduction() comes first");
}

void Adasum::add_dot_products(std::span<const std::byte* const> inputs, std::int64_t count,
                              std::span<double> products) const {
  CHECK(products.size() == dot_product_count(inputs.size()), "every input has all its products");
  const StandardFloatMode mode;
  for (std::int64_t begin = 0; begin < count; begin += kBlockElements) {
    ProductArguments arguments = {};
    arguments.count = std::min(kBlockElements, count - begin);
    const auto data_of = [&](std::size_t input) { return inputs[input] + begin * element_bytes_; };
    for (Pair left = next_pair(inputs, 0); left.first < inputs.size();
         left = next_pair(inputs, left.second + 1)) {
      arguments.left[0] = data_of(left.first);
      arguments.left[1] = data_of(left.second);
      for (Pair right = next_pair(inputs, 0); right.first <= left.first;
           right = next_pair(inputs, right.second + 1)) {
        arguments.right[0] = data_of(right.first);
        arguments.right[1] = data_of(right.second);
        add_products(*kernels_, arguments, left, right, products);
      }
    }
  }
}

void Adasum::add_weighted(std::span<const std::byte* const> inputs, std::span<const double> weights,
                          std::span<std::byte* const> outputs, std::int64_t count) const {
  if (count == 0) return;  // if there are no elements, all pointers may be null
  std::vector<const std::byte*> present;
  std::vector<double> present_weights;
  for (std::size_t input = 0; input < inputs.size(); ++input) {
    if (inputs[input] == nullptr) continue;
    present.push_back(inputs[input]);
    present_weights.push_back(weights[input]);
  }
  CHECK(!present.empty() && !outputs.empty(), "there is at least one input and one output");
  const StandardFloatMode mode;
  kernels_->add_weighted({.inputs = present.data(),
                          .weights = present_weights.data(),
                          .input_count = static_cast<std::int64_t>(present.size()),
                          .outputs = outputs.data(),
                          .output_count = static_cast<std::int64_t>(outputs.size()),
                          .count = count});
}

}  // namespace farandole
