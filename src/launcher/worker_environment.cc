#include "launcher/worker_environment.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
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

std::optional<int> cores_in_cpu_max(std::string_view text) {
  std::istringstream words{std::string(text)};
  long quota = 0;
  long period = 0;
  // Without a quota there is "max" (version 2) or -1 (version 1).
  if (!(words >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return static_cast<int>(std::max(1L, quota / period));
}

int usable_cores() {
  const int cores = cores_of_affinity();
  return std::max(1, std::min(cores, cores_of_quota().value_or(cores)));
}

std::vector<EnvironmentVariable> place_of(int rank, int workers, int rendezvous_descriptor) {
  const std::string number = std::to_string(rank);
  const std::string count = std::to_string(workers);
  return {{"FARANDOLE_RANK", number},
          {"FARANDOLE_SIZE", count},
          {"FARANDOLE_LOCAL_RANK", number},
          {"FARANDOLE_LOCAL_SIZE", count},
          {"FARANDOLE_CROSS_RANK", "0"},
          {"FARANDOLE_CROSS_SIZE", "1"},
          {"FARANDOLE_RENDEZVOUS_DESCRIPTOR", std::to_string(rendezvous_descriptor)}};
}

std::vector<EnvironmentVariable> defaults_for(int workers, int cores) {
  return {{"OMP_NUM_THREADS", std::to_string(std::max(1, cores / workers))},
          {"PYTHONUNBUFFERED", "1"}};
}

std::vector<std::string> merge_environment(
    const std::vector<std::vector<EnvironmentVariable>>& lists) {
  std::map<std::string, std::string> merged;
  for (const auto& list : lists)
    for (const auto& [name, value] : list) merged[name] = value;
  std::vector<std::string> lines;
  for (const auto& [name, value] : merged) lines.push_back(name + "=" + value);
  return lines;
}

std::vector<EnvironmentVariable> inherited_environment() {
  std::vector<EnvironmentVariable> variables;
  for (char** line = ::environ; line != nullptr && *line != nullptr; ++line) {
    const std::string text(*line);
    const auto equals = text.find('=', 1);
    if (equals != std::string::npos)
      variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

}  // namespace farandole
