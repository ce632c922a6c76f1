// Costs: what a wait costs on this host, compared with moving data. The chooser uses it to find the
// fastest algorithm. The first member of a group writes its own costs into the group's memory, so
// all members use the same.
#pragma once

#include <cstdint>

namespace farandole {

// Rough values are enough: if they choose wrongly, the algorithms take nearly the same time.
struct Costs {
  // How many bytes a member loads and stores, in cached memory, in the time in which it would
  // otherwise wait once for another member's flag.
  std::int64_t wait_bytes = 0;
};

// For `local_ranks` workers on this host, which may use `cores` of its cores. Measured with
// bench/collective_bench (docs/performance.md).
constexpr Costs costs_on(int local_ranks, int cores) {
  // If there are too few cores, the member that we wait for must get one first.
  return {.wait_bytes = local_ranks <= cores ? 12 << 10 : 48 << 10};
}

}  // namespace farandole
