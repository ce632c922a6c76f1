// Shape: the sizes of one rank's buffers in a benchmark of one operation, and a check of the
// output. The buffers have the same contents as in `farandole bench`.
#pragma once

#include <cstddef>
#include <string>

#include "../apps/farandole/bench_pattern.h"

namespace farandole::bench {

struct Shape {
  std::string operation;  // a name in kOperations, or "memcpy"
  std::size_t bytes = 0;  // as in BenchOptions::sizes, but whole elements for each rank
  int ranks = 1;
  int rank = 0;
  std::size_t element_bytes = 4;
  bool adasum = false;  // all ranks have rank 0's input, so the result equals this input

  // The rank whose pattern this rank uses as its input.
  int source() const { return adasum ? 0 : rank; }

  std::size_t input_bytes() const;
  std::size_t output_bytes() const;
};

bool is_expected(const BenchPattern& pattern, const Shape& shape, const std::byte* output,
                 std::size_t first);

}  // namespace farandole::bench
