#include "base/system_files.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>
#include <vector>

#include "base/format.h"

namespace farandole {
namespace {

// In version 1 of control groups, a limit above this number means "no limit".
constexpr std::int64_t kNoLimit = std::int64_t{1} << 60;

// Returns "", then each parent folder, and then the folder itself. For "/a/b" it returns "", "/a"
// and "/a/b".
std::vector<std::string> folder_and_parents(std::string_view folder) {
  std::vector<std::string> folders{""};
  for (std::size_t at = 1; at < folder.size(); ++at)
    if (folder[at] == '/') folders.emplace_back(folder.substr(0, at));
  if (folder.size() > 1) folders.emplace_back(folder);
  return folders;
}

// Returns our control group from /proc/self/cgroup, whose lines are "number:controllers:folder". In
// version 2, the list of controllers is empty.
std::string own_cgroup(std::string_view controller) {
  std::istringstream lines(file_text("/proc/self/cgroup").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string listed_controllers =
        format_text(",{},", line.substr(first + 1, second - first - 1));
    const std::string wanted_controller =
        controller.empty() ? ",," : format_text(",{},", controller);
    if (listed_controllers.find(wanted_controller) != std::string::npos)
      return line.substr(second + 1);
  }
  return "/";
}

std::optional<CgroupLimit> smaller_limit(std::optional<CgroupLimit> best, const std::string& folder,
                                         std::string_view limit_name, std::string_view used_name) {
  const std::string path = format_text("{}/{}", folder, limit_name);
  const auto limit = number_in_file(path);
  if (!limit || *limit >= kNoLimit || (best && best->limit <= *limit)) return best;
  return CgroupLimit{*limit, number_in_file(format_text("{}/{}", folder, used_name)).value_or(0),
                     path};
}

}  // namespace

std::optional<std::string> file_text(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  std::array<char, 4096> buffer{};
  while (file && (file.read(buffer.data(), buffer.size()), file.gcount() > 0))
    text.append(buffer.data(), static_cast<std::size_t>(file.gcount()));
  if (!file.eof()) return std::nullopt;  // the file cannot be read, or the path is a folder
  return text;
}

std::optional<std::int64_t> number_in_file(const std::string& path) {
  const auto text = file_text(path);
  if (!text) return std::nullopt;
  std::int64_t number = 0;
  const auto [parse_end, error] =
      std::from_chars(text->data(), text->data() + text->size(), number);
  // Like "max", a number that is too large for the type means that there is no limit.
  if (error == std::errc::result_out_of_range) return std::numeric_limits<std::int64_t>::max();
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

std::optional<std::int64_t> number_after(std::string_view text, std::string_view name) {
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name) || line.substr(name.size(), 1) != ":") continue;
    std::istringstream value_text(line.substr(name.size() + 1));
    if (std::int64_t number = 0; value_text >> number) return number;
  }
  return std::nullopt;
}

std::optional<CgroupLimit> smallest_limit(const CgroupFiles& files) {
  std::optional<CgroupLimit> best;
  for (const std::string& folder_path : folder_and_parents(own_cgroup("")))
    best = smaller_limit(std::move(best), "/sys/fs/cgroup" + folder_path, files.limit_file,
                         files.used_file);
  for (const std::string& folder_path : folder_and_parents(own_cgroup(files.controller)))
    best = smaller_limit(std::move(best),
                         format_text("/sys/fs/cgroup/{}{}", files.controller, folder_path),
                         files.old_limit_file, files.old_used_file);
  return best;
}

std::optional<CgroupLimit> smallest_memory_limit() {
  return smallest_limit({.controller = "memory",
                         .limit_file = "memory.max",
                         .used_file = "memory.current",
                         .old_limit_file = "memory.limit_in_bytes",
                         .old_used_file = "memory.usage_in_bytes"});
}

std::int64_t usable_memory() {
  const std::int64_t kib =
      number_after(file_text("/proc/meminfo").value_or(""), "MemTotal").value_or(0);
  const auto memory_limit = smallest_memory_limit();
  return std::min(kib * 1024, memory_limit ? memory_limit->limit : kib * 1024);
}

}  // namespace farandole
