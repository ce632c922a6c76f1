#include "shape.h"

#include <algorithm>

#include "farandole/operation.h"

namespace farandole::bench {

std::size_t Shape::input_bytes() const {
  return operation == "allgather" ? bytes / static_cast<std::size_t>(ranks) : bytes;
}

std::size_t Shape::output_bytes() const {
  return operation == "reducescatter" ? bytes / static_cast<std::size_t>(ranks) : bytes;
}

bool is_expected(const BenchPattern& pattern, const Shape& shape, const std::byte* output,
                 std::size_t first) {
  if (shape.adasum || shape.operation == "memcpy")
    return pattern.is_input(output, shape.bytes, shape.source(), first);
  const auto row = std::ranges::find(kOperations, shape.operation, &OperationRow::name);
  return pattern.is_result(row->operation, output, shape.bytes, shape.rank, first);
}

}  // namespace farandole::bench
