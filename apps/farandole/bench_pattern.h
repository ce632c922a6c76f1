// BenchPattern: the contents of the ranks' buffers in `farandole bench` and in the programs of
// bench/, and the expected results. The values are small whole numbers, so a sum over all ranks is
// exact in every type. The period is a prime number of elements, so a piece at a wrong place is
// noticed. Every repetition starts at another place of the period.
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

  // Writes a rank's input: its elements from number `first` on.
  void write(std::byte* memory, std::size_t bytes, int rank, std::size_t first) const;
  // Whether memory holds a rank's input.
  bool is_input(const std::byte* memory, std::size_t bytes, int rank, std::size_t first) const {
    return holds(inputs_[static_cast<std::size_t>(rank)], memory, bytes, first);
  }
  // Whether memory holds the result that `rank` must get from an operation on `bytes` (see
  // BenchPlan::bytes_for).
  bool is_result(Operation operation, const std::byte* memory, std::size_t bytes, int rank,
                 std::size_t first) const;

 private:
  using Period = std::vector<std::byte>;
  bool holds(const Period& period, const std::byte* memory, std::size_t bytes,
             std::size_t first) const;

  std::size_t element_bytes_;
  std::vector<Period> inputs_;  // by rank
  Period sum_;
};

}  // namespace farandole
