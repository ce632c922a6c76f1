#include "diagnosis/stack_text.h"

#include <algorithm>

#include "base/format.h"
#include "base/visible_text.h"

namespace farandole {
namespace {

constexpr std::size_t kLinesMax = 12;
constexpr std::size_t kInnermostShown = 5;
constexpr std::size_t kOutermostShown = kLinesMax - kInnermostShown - 1;

std::string omission_line(std::size_t count, const char* noun, const char* end_of_line = "") {
  return format_text("    … {} {}{}{}", count, noun, count == 1 ? "" : "s", end_of_line);
}

// py-spy writes a frame as "    function (farandole/torch/calls.py:12)".
bool is_of_farandole(const std::string& frame) {
  return frame.find(" (farandole/") != std::string::npos;
}

std::vector<std::string> without_own_frames(const std::vector<std::string>& frames) {
  std::vector<std::string> lines;
  for (auto frame = frames.begin(); frame != frames.end();) {
    const auto end = std::find_if_not(frame, frames.end(), is_of_farandole);
    if (end == frame) {
      lines.push_back(*frame++);
    } else {
      lines.push_back(
          omission_line(static_cast<std::size_t>(end - frame), "frame", " of Farandole"));
      frame = end;
    }
  }
  return lines;
}

std::vector<std::string> without_middle_lines(std::vector<std::string> lines) {
  if (lines.size() <= kLinesMax) return lines;
  const auto begin = lines.begin() + kInnermostShown;
  const auto end = lines.end() - kOutermostShown;
  *begin = omission_line(static_cast<std::size_t>(end - begin), "line");
  lines.erase(begin + 1, end);
  return lines;
}

}  // namespace

std::vector<std::string> main_thread_frames(std::string_view dump, pid_t pid) {
  const std::string main_thread_prefix = "Thread " + std::to_string(pid) + " ";
  std::vector<std::string> first_lines;
  std::vector<std::string> frames;
  bool in_main_thread = false;
  bool has_threads = false;
  while (!dump.empty()) {
    const auto end = std::min(dump.find('\n'), dump.size());
    const std::string_view line = dump.substr(0, end);
    dump.remove_prefix(std::min(end + 1, dump.size()));
    if (line.empty()) continue;
    if (first_lines.size() < kLinesMax) first_lines.push_back(escape_controls(line));
    const bool begins_thread = line.starts_with("Thread ");
    has_threads = has_threads || begins_thread;
    if (begins_thread)
      in_main_thread = line.starts_with(main_thread_prefix);
    else if (in_main_thread && line.starts_with(' '))
      frames.push_back(escape_controls(line));
  }
  if (!has_threads) return {};
  return frames.empty() ? first_lines : without_middle_lines(without_own_frames(frames));
}

std::string last_line_of(std::string_view text) {
  const auto end = text.find_last_not_of(" \r\n");
  if (end == std::string_view::npos) return {};
  text = text.substr(0, end + 1);
  return escape_controls(text.substr(text.rfind('\n') + 1));
}

}  // namespace farandole
