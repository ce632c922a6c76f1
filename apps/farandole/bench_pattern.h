// BenchPattern: the contents of the ranks' buffers in `farandole bench` and in the programs of
// bench/, and the expected results. The values are small whole numbers, so a sum over all ranks is
// exact in every type. The pattern repeats after a prime number of elements, so that the check
// notices data at a wrong offset. Every repetition of the benchmark starts at a different element
// of the pattern, so that the check notices if a buffer still has the result of an earlier
// repetition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "farandole/dtype.h"
#include "farandole/operation.h"

namespace farandole {

class BenchPattern {
 public:
  BenchPattern(DType dtype, int ranks);

  // Writes the input of a rank. The input begins with element `first_element` of the pattern.
  void write(std::byte* memory, std::size_t bytes, int rank, std::size_t first_element) const;
  // Whether `memory` contains a rank's input.
  bool is_input(const std::byte* memory, std::size_t bytes, int rank,
                std::size_t first_element) const {
    return matches(inputs_[static_cast<std::size_t>(rank)], memory, bytes, first_element);
  }
  // Whether `memory` contains the result of an operation for `rank`. `bytes` is the rounded size
  // (BenchPlan::bytes_for).
  bool is_result(Operation operation, const std::byte* memory, std::size_t bytes, int rank,
                 std::size_t first_element) const;

 private:
  using Period = std::vector<std::byte>;
  bool matches(const Period& period, const std::byte* memory, std::size_t bytes,
               std::size_t first_element) const;

  std::size_t element_bytes_;
  std::vector<Period> inputs_;  // by rank
  Period sum_;
};

}  // namespace farandole
