// Pattern: what the ranks put into their buffers, and what an operation must make of it. Small
// whole numbers, so that a sum over all ranks is exact in every type. The period is a prime number
// of elements, so that a piece at a wrong place is seen; and a call's numbers differ from those
// before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "farandole/dtype.h"

namespace farandole::bench {

class Pattern {
 public:
  Pattern(DType dtype, int ranks);

  // What the rank brings to a call: its elements from `first` on.
  void write(std::byte* memory, std::size_t bytes, int rank, std::uint64_t first) const;
  // Whether memory holds what that rank brought, or the sum of all ranks.
  bool holds_input(const std::byte* memory, std::size_t bytes, int rank, std::uint64_t first) const;
  bool holds_sum(const std::byte* memory, std::size_t bytes, std::uint64_t first) const;

 private:
  using Period = std::vector<std::byte>;
  bool holds(const Period& period, const std::byte* memory, std::size_t bytes,
             std::uint64_t first) const;

  std::size_t element_bytes_;
  std::vector<Period> inputs_;  // of each rank
  Period sum_;
};

// Of the output of a call: where each piece must have come from.
struct Shape {
  std::string operation;
  std::size_t bytes = 0;  // as BenchOptions::sizes, rounded up to whole elements for each rank
  int ranks = 1;
  int rank = 0;
  std::size_t element_bytes = 4;
  bool adasum = false;  // then all bring what rank 0 brings, which is also the result

  // Whose pattern we bring.
  int source() const { return adasum ? 0 : rank; }

  std::size_t input_bytes() const;
  std::size_t output_bytes() const;
};

bool is_expected(const Pattern& pattern, const Shape& shape, const std::byte* output,
                 std::uint64_t first);

}  // namespace farandole::bench
