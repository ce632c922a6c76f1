// What the kernel tells in small files: /proc, /sys, and the limits of our control groups.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace farandole {

std::optional<std::string> file_text(const std::string& path);
// The number that a file begins with.
std::optional<std::int64_t> file_number(const std::string& path);
// The number behind "NAME:" at the start of a line, as in /proc/meminfo.
std::optional<std::int64_t> number_behind(std::string_view text, std::string_view name);

struct GroupFiles {
  std::string_view controller;  // "memory"
  // Version 2 first, then version 1.
  std::string_view limit;
  std::string_view used;
  std::string_view old_limit;
  std::string_view old_used;
};
struct GroupLimit {
  std::int64_t limit = 0;
  std::int64_t used = 0;
  std::string path;  // of the file that holds the limit
};
// The smallest limit of the control groups that we are in; nothing without one.
std::optional<GroupLimit> smallest_limit(const GroupFiles& files);

}  // namespace farandole
