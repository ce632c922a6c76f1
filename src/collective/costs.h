// Costs: what waiting and moving cost on this host; from it the chooser knows which algorithm is
// quickest. The first member of a group writes its own into the group's memory, so all have the
// same.
#pragma once

namespace farandole {

// Roughly: it decides between algorithms whose times differ little where it is wrong.
struct Costs {
  double wait_ns = 0;       // until a flag of another member is seen
  double bytes_per_ns = 0;  // loaded and stored by one member, in memory that is in some cache
};

// For `local_ranks` workers on this host, of whose cores `cores` may be used.
constexpr Costs costs_on(int local_ranks, int cores) {
  // Measured with bench/collective_bench: see docs/performance.md.
  if (local_ranks <= cores) return {.wait_ns = 250, .bytes_per_ns = 50};
  // Whom we wait for must first get a core.
  const double shared_by = static_cast<double>(local_ranks) / cores;
  return {.wait_ns = 1000 * shared_by, .bytes_per_ns = 50 / shared_by};
}

}  // namespace farandole
