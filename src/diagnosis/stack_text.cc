#include "diagnosis/stack_text.h"

#include <algorithm>

#include "base/visible_text.h"

namespace farandole {
namespace {

constexpr std::size_t kLinesMax = 12;

}  // namespace

std::vector<std::string> main_thread_in(std::string_view dump, pid_t pid) {
  const std::string wanted = "Thread " + std::to_string(pid) + " ";
  std::vector<std::string> all;
  std::vector<std::string> frames;
  bool inside = false;
  bool any = false;
  while (!dump.empty()) {
    const auto end = std::min(dump.find('\n'), dump.size());
    const std::string_view line = dump.substr(0, end);
    dump.remove_prefix(std::min(end + 1, dump.size()));
    if (line.empty()) continue;
    if (all.size() < kLinesMax) all.push_back(make_visible(line));
    const bool begins = line.starts_with("Thread ");
    any = any || begins;
    if (begins)
      inside = line.starts_with(wanted);
    else if (inside && line.starts_with(' ') && frames.size() < kLinesMax)
      frames.push_back(make_visible(line));
  }
  if (!any) return {};
  return frames.empty() ? all : frames;
}

std::string last_line_of(std::string_view text) {
  const auto end = text.find_last_not_of(" \r\n");
  if (end == std::string_view::npos) return {};
  text = text.substr(0, end + 1);
  return make_visible(text.substr(text.rfind('\n') + 1));
}

}  // namespace farandole
