// What both ways to do an allreduce share: the options, and what members say when they enter.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collective/entrance.h"
#include "device/cpu/reduce.h"

namespace farandole {

struct AllreduceOptions {
  Reduction reduction = {};
  std::int64_t count = 0;  // elements, the same on all members
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // may equal input; untouched before all members have entered
  // This member has joined: no input, no output. Not on all members.
  bool joined = false;

  std::int64_t element_bytes() const {
    return static_cast<std::int64_t>(row_of(reduction.dtype).bytes);
  }
  std::int64_t bytes() const { return count * element_bytes(); }
  bool is_adasum() const { return reduction.op == ReduceOp::kAdasum; }
};

// What is added to the extent of a member that has joined. No tensor has as many bytes.
inline constexpr std::int64_t kJoinedExtent = std::int64_t{1} << 62;

inline std::int64_t extent_of(const AllreduceOptions& options) {
  return options.joined ? kJoinedExtent + options.bytes() : options.bytes();
}

// Of a member, once all have met.
inline bool has_joined(const Entrance& entrance, int member) {
  return entrance.extent(member) >= kJoinedExtent;
}

// How many members bring something, once all have met; 0 when what they say makes no sense: all
// bring this number of bytes, or have joined and expect it, and somebody brings.
int count_present(const Entrance& entrance, std::int64_t bytes);

// The divisor becomes that of what so many members bring.
inline void divide_by(Reduction& reduction, int present) {
  if (reduction.op == ReduceOp::kAverageOfPresent) reduction.divisor = present;
}

}  // namespace farandole
