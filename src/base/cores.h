// How many cores this process may use. The launcher uses the number to choose how many threads a
// worker gets; an engine uses it to choose how it waits.
#pragma once

#include <optional>
#include <string_view>

namespace farandole {

// The number of cores in the CPU affinity or in the container's CPU quota, whichever is smaller; at
// least 1. Reads system files at every call. Any thread.
int usable_cores();

// The number of whole cores in the text of cgroup's cpu.max: "150000 100000" is one core. Empty if
// there is no quota.
std::optional<int> cores_in_cpu_max(std::string_view text);

}  // namespace farandole
