// BenchPattern: what the ranks of `farandole bench` put into their buffers, and what must come out.
// Small whole numbers, so that a sum over all ranks is exact in every type; the period is a prime
// number of elements, so that a piece at a wrong place is seen, and every repetition starts
// elsewhere in it.
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

  // The elements that a rank brings, from the number `first` on.
  void write(std::byte* memory, std::size_t bytes, int rank, std::size_t first) const;
  // Whether memory is what `rank` must have of an operation on `bytes` (BenchPlan::bytes_for).
  bool is_result(Operation operation, const std::byte* memory, std::size_t bytes, int rank,
                 std::size_t first) const;

 private:
  using Period = std::vector<std::byte>;
  bool holds(const Period& period, const std::byte* memory, std::size_t bytes,
             std::size_t first) const;

  std::size_t element_bytes_;
  std::vector<Period> brought_;  // by each rank
  Period sum_;
};

}  // namespace farandole
