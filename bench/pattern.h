// Pattern: the contents of the ranks' buffers and the expected results. The values are small whole
// numbers, so a sum over all ranks is exact in every type. The period is a prime number of
// elements, so a piece at a wrong place is noticed. Each call has other values than the calls
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

  // Writes a rank's input of a call: its elements from `first` on.
  void write(std::byte* memory, std::size_t bytes, int rank, std::uint64_t first) const;
  // Whether memory contains that rank's input, or the sum over all ranks.
  bool holds_input(const std::byte* memory, std::size_t bytes, int rank, std::uint64_t first) const;
  bool holds_sum(const std::byte* memory, std::size_t bytes, std::uint64_t first) const;

 private:
  using Period = std::vector<std::byte>;
  bool holds(const Period& period, const std::byte* memory, std::size_t bytes,
             std::uint64_t first) const;

  std::size_t element_bytes_;
  std::vector<Period> inputs_;  // by rank
  Period sum_;
};

// The expected output of a call: where each piece must come from.
struct Shape {
  std::string operation;
  std::size_t bytes = 0;  // like BenchOptions::sizes, rounded up to whole elements for each rank
  int ranks = 1;
  int rank = 0;
  std::size_t element_bytes = 4;
  bool adasum = false;  // all ranks use rank 0's input, which is then also the result

  // The rank whose pattern is our input.
  int source() const { return adasum ? 0 : rank; }

  std::size_t input_bytes() const;
  std::size_t output_bytes() const;
};

bool is_expected(const Pattern& pattern, const Shape& shape, const std::byte* output,
                 std::uint64_t first);

}  // namespace farandole::bench
