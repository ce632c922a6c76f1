#include "base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <thread>

namespace farandole {
namespace {

// Enough for far more hardware threads than any host has.
constexpr std::size_t kCpuSetsMax = 64;
constexpr int kHardwareThreadsMax = static_cast<int>(kCpuSetsMax * CPU_SETSIZE);

std::optional<std::string> read_text(const char* path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

std::vector<int> usable_hardware_threads(pid_t process) {
  // The kernel rejects a mask that is too small for all its hardware threads, so try larger and
  // larger masks.
  for (std::size_t sets = 1; sets <= kCpuSetsMax; sets *= 2) {
    std::vector<cpu_set_t> mask(sets);
    const std::size_t bytes = sets * sizeof(cpu_set_t);
    if (::sched_getaffinity(process, bytes, mask.data()) != 0) {
      if (errno == EINVAL) continue;
      return {};
    }
    std::vector<int> threads;
    for (int number = 0; number < static_cast<int>(bytes * CHAR_BIT); ++number)
      if (CPU_ISSET_S(number, bytes, mask.data())) threads.push_back(number);
    return threads;
  }
  return {};
}

std::optional<int> core_quota() {
  if (const auto text = read_text("/sys/fs/cgroup/cpu.max")) return cores_in_cpu_max(*text);
  const auto quota = read_text("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  const auto period = read_text("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (!quota || !period) return std::nullopt;
  return cores_in_cpu_max(*quota + " " + *period);
}

int usable_cores() {
  const auto threads_in_affinity = static_cast<int>(usable_hardware_threads().size());
  const int cores = threads_in_affinity > 0 ? threads_in_affinity
                                            : static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, std::min(cores, core_quota().value_or(cores)));
}

std::optional<int> cores_in_cpu_max(std::string_view text) {
  std::istringstream words{std::string(text)};
  long quota = 0;
  long period = 0;
  // If there is no quota, the file says "max" (cgroup version 2) or -1 (version 1).
  if (!(words >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return static_cast<int>(std::max(1L, quota / period));
}

std::string list_text(std::span<const int> ascending) {
  std::string text;
  for (std::size_t i = 0; i < ascending.size(); ++i) {
    const std::size_t first = i;
    while (i + 1 < ascending.size() && ascending[i + 1] == ascending[i] + 1) ++i;
    if (!text.empty()) text.append(",");
    text.append(std::to_string(ascending[first]));
    if (i > first) text.append("-").append(std::to_string(ascending[i]));
  }
  return text;
}

std::vector<int> numbers_in_list(std::string_view text) {
  std::set<int> numbers;
  std::istringstream items{std::string(text)};
  for (std::string item; std::getline(items, item, ',');) {
    int first = 0;
    int last = 0;
    const int fields_read = std::sscanf(item.c_str(), "%d-%d", &first, &last);
    if (fields_read == 1) last = first;
    if (fields_read < 1 || first < 0 || last >= kHardwareThreadsMax) continue;
    for (int number = first; number <= last; ++number) numbers.insert(number);
  }
  return {numbers.begin(), numbers.end()};
}

std::string bound_hardware_threads(pid_t process, pid_t launcher) {
  const std::vector<int> threads = usable_hardware_threads(process);
  return threads == usable_hardware_threads(launcher) ? "" : list_text(threads);
}

}  // namespace farandole
