#include "pattern.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace farandole::bench {
namespace {

constexpr std::size_t kPeriod = 4093;
constexpr unsigned kValues = 16;  // 16 ranks × 15 is still exact in bfloat16

// The bits of a small whole number.
std::uint64_t bits_of(DType dtype, unsigned value) {
  const auto single = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  switch (dtype) {
    case DType::kFloat64:
      return std::bit_cast<std::uint64_t>(static_cast<double>(value));
    case DType::kFloat32:
      return single;
    case DType::kBFloat16:
      return single >> 16;
    case DType::kFloat16:  // the exponent's bias is 15 instead of 127, and the mantissa has 10 bits
      return value == 0 ? 0 : (single >> 13) - ((127 - 15) << 10);
    default:
      return value;
  }
}

unsigned value_of(std::size_t index, std::size_t rank) {
  const auto mixed = static_cast<std::uint32_t>(index + 1) * 2654435761U +
                     static_cast<std::uint32_t>(rank) * 2246822519U;
  return (mixed ^ mixed >> 15) * 2654435761U >> 28;
}

}  // namespace

Pattern::Pattern(DType dtype, int ranks)
    : element_bytes_(row_of(dtype).bytes),
      inputs_(static_cast<std::size_t>(ranks), Period(kPeriod * element_bytes_)),
      sum_(kPeriod * element_bytes_) {
  static_assert(kValues == 1 << 4, "value_of() keeps four bits");
  for (std::size_t index = 0; index < kPeriod; ++index) {
    unsigned sum = 0;
    for (std::size_t rank = 0; rank < inputs_.size(); ++rank) {
      const std::uint64_t bits = bits_of(dtype, value_of(index, rank));
      std::memcpy(&inputs_[rank][index * element_bytes_], &bits, element_bytes_);
      sum += value_of(index, rank);
    }
    const std::uint64_t bits = bits_of(dtype, sum);
    std::memcpy(&sum_[index * element_bytes_], &bits, element_bytes_);
  }
}

void Pattern::write(std::byte* memory, std::size_t bytes, int rank, std::uint64_t first) const {
  const Period& period = inputs_[static_cast<std::size_t>(rank)];
  std::size_t from = first % kPeriod * element_bytes_;
  for (std::size_t begin = 0; begin < bytes;) {
    const std::size_t part = std::min(period.size() - from, bytes - begin);
    std::memcpy(memory + begin, &period[from], part);
    begin += part;
    from = 0;
  }
}

bool Pattern::holds(const Period& period, const std::byte* memory, std::size_t bytes,
                    std::uint64_t first) const {
  std::size_t from = first % kPeriod * element_bytes_;
  for (std::size_t begin = 0; begin < bytes;) {
    const std::size_t part = std::min(period.size() - from, bytes - begin);
    if (std::memcmp(memory + begin, &period[from], part) != 0) return false;
    begin += part;
    from = 0;
  }
  return true;
}

bool Pattern::holds_input(const std::byte* memory, std::size_t bytes, int rank,
                          std::uint64_t first) const {
  return holds(inputs_[static_cast<std::size_t>(rank)], memory, bytes, first);
}

bool Pattern::holds_sum(const std::byte* memory, std::size_t bytes, std::uint64_t first) const {
  return holds(sum_, memory, bytes, first);
}

std::size_t Shape::input_bytes() const {
  return operation == "allgather" ? bytes / static_cast<std::size_t>(ranks) : bytes;
}

std::size_t Shape::output_bytes() const {
  return operation == "reducescatter" ? bytes / static_cast<std::size_t>(ranks) : bytes;
}

bool is_expected(const Pattern& pattern, const Shape& shape, const std::byte* output,
                 std::uint64_t first) {
  const auto piece = shape.bytes / static_cast<std::size_t>(shape.ranks);
  const std::uint64_t ours = static_cast<std::uint64_t>(shape.rank) * piece / shape.element_bytes;
  if (shape.adasum) return pattern.holds_input(output, shape.bytes, 0, first);
  if (shape.operation == "allreduce") return pattern.holds_sum(output, shape.bytes, first);
  if (shape.operation == "reducescatter") return pattern.holds_sum(output, piece, first + ours);
  if (shape.operation == "broadcast") return pattern.holds_input(output, shape.bytes, 0, first);
  if (shape.operation == "memcpy")
    return pattern.holds_input(output, shape.bytes, shape.rank, first);
  bool expected = true;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const std::byte* const theirs = output + static_cast<std::size_t>(rank) * piece;
    const std::uint64_t from = shape.operation == "alltoall" ? first + ours : first;
    expected &= pattern.holds_input(theirs, piece, rank, from);
  }
  return expected;
}

}  // namespace farandole::bench
