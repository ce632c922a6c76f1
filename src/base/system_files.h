// Reads small files of the kernel in /proc and /sys, such as the limits of our control group.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace farandole {

std::optional<std::string> file_text(const std::string& path);
// Returns the number at the beginning of a file.
std::optional<std::int64_t> number_in_file(const std::string& path);
// Returns the number after "NAME:" at the start of a line, as in /proc/meminfo.
std::optional<std::int64_t> number_after(std::string_view text, std::string_view name);

// The names of the files in which the kernel writes a limit of a control group, and how much of it
// is used. The names with `old_` are for version 1 of control groups.
struct CgroupFiles {
  std::string_view controller;  // "memory"
  std::string_view limit_file;
  std::string_view used_file;
  std::string_view old_limit_file;
  std::string_view old_used_file;
};
struct CgroupLimit {
  std::int64_t limit = 0;
  std::int64_t used = 0;
  std::string path;  // the file that contains the limit
};
// Returns the smallest limit of our control group and its parents; empty if there is none.
std::optional<CgroupLimit> smallest_limit(const CgroupFiles& files);
std::optional<CgroupLimit> smallest_memory_limit();

// Returns the bytes of memory that the machine has, or less if a control group limits them; 0 if
// /proc cannot be read.
std::int64_t usable_memory();
// Returns how much freed memory all workers of a job together may keep for new tensors.
inline std::int64_t kept_bytes_max_of_all_workers() { return usable_memory() / 4; }

}  // namespace farandole
