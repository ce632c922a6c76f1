#include "diagnosis/memory_kills.h"

#include <cstdint>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

namespace farandole {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

bool has_word(const std::string& list, const std::string& wanted) {
  for (const auto& word : split(list, ','))
    if (word == wanted) return true;
  return false;
}

// The path of the process's memory cgroup. cgroup version 1 has a separate tree for memory; version
// 2 has one tree for all resources.
struct CgroupPath {
  bool is_version_1 = false;
  std::string path;
};

std::optional<CgroupPath> memory_cgroup(std::istream& groups) {
  std::optional<CgroupPath> version_2_path;
  for (std::string line; std::getline(groups, line);) {
    // A line is "4:memory:/path" or "0::/path". The path may contain colons.
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (has_word(controllers, "memory")) return CgroupPath{true, line.substr(second + 1)};
    if (controllers.empty()) version_2_path = CgroupPath{false, line.substr(second + 1)};
  }
  return version_2_path;
}

// Returns the folder of the cgroup: the mount point of its tree plus the path of the cgroup below
// the mounted root. In a container, the mounted root may be a subtree.
std::optional<std::string> folder_of(const CgroupPath& group, std::istream& mounts) {
  for (std::string line; std::getline(mounts, line);) {
    // A line is "30 25 0:26 ROOT MOUNT_POINT options [more …] - TYPE source OPTIONS".
    const auto words = split(line, ' ');
    std::size_t dash = 6;
    while (dash < words.size() && words[dash] != "-") ++dash;
    if (dash + 3 >= words.size()) continue;
    const bool is_memory_tree =
        group.is_version_1 ? words[dash + 1] == "cgroup" && has_word(words[dash + 3], "memory")
                           : words[dash + 1] == "cgroup2";
    if (!is_memory_tree) continue;
    const std::string root = words[3] == "/" ? "" : words[3];
    if (!group.path.starts_with(root)) continue;
    return words[4] + group.path.substr(root.size());
  }
  return std::nullopt;
}

// Finds the line that begins with `wanted` in a file of names and numbers, and returns the number
// in this line.
std::int64_t value_in(const std::string& file, const std::string& wanted_name) {
  std::ifstream stream(file);
  std::string name;
  for (std::int64_t count = 0; stream >> name >> count;)
    if (name == wanted_name) return count;
  return 0;
}

}  // namespace

std::optional<std::string> memory_counter_file(std::istream& groups, std::istream& mounts) {
  const auto group = memory_cgroup(groups);
  if (!group) return std::nullopt;
  const auto folder = folder_of(*group, mounts);
  if (!folder) return std::nullopt;
  return *folder + (group->is_version_1 ? "/memory.oom_control" : "/memory.events");
}

std::optional<std::string> own_memory_counter_file() {
  std::ifstream groups("/proc/self/cgroup");
  std::ifstream mounts("/proc/self/mountinfo");
  return memory_counter_file(groups, mounts);
}

MemoryKillCounter::MemoryKillCounter(std::optional<std::string> counter_file)
    : file_(std::move(counter_file)) {
  last_sample_ = previous_sample_ = count();
}

MemoryKills MemoryKillCounter::count() const {
  return {.in_cgroup = file_ ? value_in(*file_, "oom_kill") : 0,
          .on_machine = value_in("/proc/vmstat", "oom_kill")};
}

void MemoryKillCounter::sample() { previous_sample_ = std::exchange(last_sample_, count()); }

MemoryKills MemoryKillCounter::recent_kills() const {
  const MemoryKills current_counts = count();
  return {current_counts.in_cgroup - previous_sample_.in_cgroup,
          current_counts.on_machine - previous_sample_.on_machine};
}

}  // namespace farandole
