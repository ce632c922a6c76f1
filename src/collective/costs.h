// Costs: the time of a wait on this host, expressed in bytes that could be moved in that time. The
// chooser uses it to find the fastest algorithm. The first member of a group writes its own costs
// into the group's memory, so all members use the same.
#pragma once

#include <cstdint>

namespace farandole {

// Rough values are enough: they lead to a wrong choice only if both algorithms take nearly the same
// time.
struct Costs {
  // The cost of one wait for another member's flag: in the same time, a member can load and store
  // this many bytes of cached memory.
  std::int64_t wait_bytes = 0;
};

// The costs for `local_ranks` workers that share `cores` cores of this host. The values were
// measured with bench/collective_bench (docs/performance.md).
constexpr Costs costs_on(int local_ranks, int cores) {
  // With fewer cores than workers, a wait is longer, because the member that we wait for may have
  // to wait for a core.
  return {.wait_bytes = local_ranks <= cores ? 12 << 10 : 48 << 10};
}

}  // namespace farandole
