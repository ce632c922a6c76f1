// Which cores a process may use. The launcher calls these functions to choose how many threads a
// worker gets, and to bind workers to cores. An engine calls them to choose whether a waiting
// thread spins or sleeps. A *hardware thread* is what Linux calls a CPU: a core has one, or several
// if it has hyper-threads.
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace farandole {

// The hardware threads in the CPU affinity of a process on this host, in ascending order. If
// `process` is 0, those of the calling thread. Empty if there is no such process. Any thread may
// call it.
std::vector<int> usable_hardware_threads(pid_t process = 0);

// The number of hardware threads in the CPU affinity or in the container's CPU quota, whichever is
// smaller; at least 1. Each call reads system files. Any thread may call it.
int usable_cores();

// How many cores the container's CPU quota allows; empty if there is no quota.
std::optional<int> core_quota();

// The number of whole cores that the text of a cgroup's cpu.max allows: "150000 100000" allows one
// core. Empty if there is no quota.
std::optional<int> cores_in_cpu_max(std::string_view text);

// A list of hardware threads as Linux writes it, such as "0-3,8". numbers_in_list() returns the
// numbers in ascending order, and ignores what it cannot read. Both are pure functions.
std::string list_text(std::span<const int> ascending);
std::vector<int> numbers_in_list(std::string_view text);

// The hardware threads of `process` as a list, if they differ from those of the process `launcher`.
// Empty if they are the same (the process is not bound), or if the process has ended.
std::string bound_hardware_threads(pid_t process, pid_t launcher);

}  // namespace farandole
