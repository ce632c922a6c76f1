// How many cores this process may use: what threads are counted by.
#pragma once

#include <optional>
#include <string_view>

namespace farandole {

// The smaller of its affinity and the cpu quota of its container; at least 1. Reads files of the
// system at every call. Any thread.
int usable_cores();

// The whole cores in the text of cgroup's cpu.max ("150000 100000" is one); nothing without a
// quota.
std::optional<int> cores_in_cpu_max(std::string_view text);

}  // namespace farandole
