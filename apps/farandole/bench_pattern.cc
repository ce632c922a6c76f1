#include "bench_pattern.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace farandole {
namespace {

constexpr std::size_t kPeriod = 1021;
constexpr std::size_t kSumMax = 120;  // every type, even int8, represents this number exactly

// Returns the bits of a small whole number in this type.
std::uint64_t bits_of(DType dtype, std::size_t value) {
  const auto float_bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  switch (dtype) {
    case DType::kFloat64:
      return std::bit_cast<std::uint64_t>(static_cast<double>(value));
    case DType::kFloat32:
      return float_bits;
    case DType::kBFloat16:
      return float_bits >> 16U;
    case DType::kFloat16:  // convert the exponent's bias and shorten the mantissa
      return value == 0 ? 0 : (float_bits >> 13U) - ((127U - 15U) << 10U);
    default:
      return value;
  }
}

}  // namespace

BenchPattern::BenchPattern(DType dtype, int ranks)
    : element_bytes_(row_of(dtype).bytes),
      inputs_(static_cast<std::size_t>(ranks), Period(kPeriod * element_bytes_)),
      sum_(kPeriod * element_bytes_) {
  const std::size_t value_count = 1 + std::max<std::size_t>(kSumMax / inputs_.size(), 1);
  const auto append_value = [&](Period& period, std::size_t index, std::size_t value) {
    const std::uint64_t bits = bits_of(dtype, value);
    std::memcpy(&period[index * element_bytes_], &bits, element_bytes_);
  };
  for (std::size_t index = 0; index < kPeriod; ++index) {
    std::size_t sum = 0;
    for (std::size_t rank = 0; rank < inputs_.size(); ++rank) {
      const std::size_t value =
          (index * 7919 + rank * 104729 + index * index) % kPeriod % value_count;
      append_value(inputs_[rank], index, value);
      sum += value;
    }
    append_value(sum_, index, sum);
  }
}

void BenchPattern::write(std::byte* memory, std::size_t bytes, int rank,
                         std::size_t first_element) const {
  const Period& period = inputs_[static_cast<std::size_t>(rank)];
  std::size_t pattern_begin = first_element % kPeriod * element_bytes_;
  for (std::size_t begin = 0; begin < bytes; pattern_begin = 0) {
    const std::size_t count = std::min(period.size() - pattern_begin, bytes - begin);
    std::memcpy(memory + begin, &period[pattern_begin], count);
    begin += count;
  }
}

bool BenchPattern::matches(const Period& period, const std::byte* memory, std::size_t bytes,
                           std::size_t first_element) const {
  std::size_t pattern_begin = first_element % kPeriod * element_bytes_;
  for (std::size_t begin = 0; begin < bytes; pattern_begin = 0) {
    const std::size_t count = std::min(period.size() - pattern_begin, bytes - begin);
    if (std::memcmp(memory + begin, &period[pattern_begin], count) != 0) return false;
    begin += count;
  }
  return true;
}

bool BenchPattern::is_result(Operation operation, const std::byte* memory, std::size_t bytes,
                             int rank, std::size_t first_element) const {
  const std::size_t piece = bytes / inputs_.size();
  const std::size_t rank_begin =
      first_element + static_cast<std::size_t>(rank) * piece / element_bytes_;
  if (operation == Operation::kAllreduce) return matches(sum_, memory, bytes, first_element);
  if (operation == Operation::kReducescatter) return matches(sum_, memory, piece, rank_begin);
  if (operation == Operation::kBroadcast) return matches(inputs_[0], memory, bytes, first_element);
  for (std::size_t source = 0; source < inputs_.size(); ++source) {
    const std::size_t begin = operation == Operation::kAlltoall ? rank_begin : first_element;
    if (!matches(inputs_[source], memory + source * piece, piece, begin)) return false;
  }
  return true;
}

}  // namespace farandole
