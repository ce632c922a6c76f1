// Costs: what a wait costs on this host, beside moving data; from it the chooser knows which
// algorithm is quickest. The first member of a group writes its own into the group's memory, so all
// have the same.
#pragma once

#include <cstdint>

namespace farandole {

// Roughly: it decides between algorithms whose times differ little where it is wrong.
struct Costs {
  // What a member loads and stores, in memory that is in some cache, while it would otherwise wait
  // once for a flag of another member.
  std::int64_t wait_bytes = 0;
};

// For `local_ranks` workers on this host, of whose cores `cores` may be used. Measured with
// bench/collective_bench (docs/performance.md).
constexpr Costs costs_on(int local_ranks, int cores) {
  // With too few cores, whom we wait for must first get one.
  return {.wait_bytes = local_ranks <= cores ? 12 << 10 : 48 << 10};
}

}  // namespace farandole
