#include "base/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>

namespace farandole {
namespace {

std::optional<std::string> read_text(const char* path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

int cores_of_affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

std::optional<int> cores_of_quota() {
  if (const auto text = read_text("/sys/fs/cgroup/cpu.max")) return cores_in_cpu_max(*text);
  const auto quota = read_text("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  const auto period = read_text("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (!quota || !period) return std::nullopt;
  return cores_in_cpu_max(*quota + " " + *period);
}

}  // namespace

int usable_cores() {
  const int cores = cores_of_affinity();
  return std::max(1, std::min(cores, cores_of_quota().value_or(cores)));
}

std::optional<int> cores_in_cpu_max(std::string_view text) {
  std::istringstream words{std::string(text)};
  long quota = 0;
  long period = 0;
  // If there is no quota, the file says "max" (cgroup version 2) or -1 (version 1).
  if (!(words >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return static_cast<int>(std::max(1L, quota / period));
}

}  // namespace farandole
