// What the two allreduce algorithms share: the options, and what members publish when they enter.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collective/entry_barrier.h"
#include "device/cpu/reduce.h"

namespace farandole {

struct AllreduceOptions {
  Reduction reduction = {};
  std::int64_t count = 0;  // elements, the same on all members
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // may equal input; not written before all members have entered
  // This member has joined: it has no input and no output. At least one member has not joined.
  bool joined = false;

  std::int64_t element_bytes() const {
    return static_cast<std::int64_t>(row_of(reduction.dtype).bytes);
  }
  std::int64_t bytes() const { return count * element_bytes(); }
  bool is_adasum() const { return reduction.op == ReduceOp::kAdasum; }
};

// A member that has joined adds this number to its declared count. No tensor has this many bytes,
// so the other members recognize that this member has joined.
inline constexpr std::int64_t kJoinedDeclaredCount = std::int64_t{1} << 62;

inline std::int64_t declared_count_of(const AllreduceOptions& options) {
  return options.joined ? kJoinedDeclaredCount + options.bytes() : options.bytes();
}

// Whether a member has joined. Call it after all have entered.
inline bool has_joined(const EntryBarrier& entry_barrier, int member) {
  return entry_barrier.declared_count(member) >= kJoinedDeclaredCount;
}

// How many members contribute data. Call it after all have entered. Returns 0 if the entries are
// invalid. They are valid if each member contributes `bytes` bytes, or has joined and expects
// `bytes` bytes, and if at least one member contributes data.
int count_contributing_members(const EntryBarrier& entry_barrier, std::int64_t bytes);

// Sets the divisor of an average over the members that contribute data.
inline void set_divisor(Reduction& reduction, int contributing_members) {
  if (reduction.op == ReduceOp::kAverageOfPresent) reduction.divisor = contributing_members;
}

}  // namespace farandole
