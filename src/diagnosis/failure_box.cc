#include "diagnosis/failure_box.h"

#include <signal.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "base/visible_text.h"
#include "diagnosis/call_text.h"

namespace farandole {
namespace {

constexpr int kColumnsMin = 40;
constexpr int kColumnsMax = 100;
constexpr std::size_t kTracebackLinesMax = 30;
constexpr std::string_view kFrameColor = "\x1b[31m";
constexpr std::string_view kTitleColor = "\x1b[1m";
constexpr std::string_view kResetColor = "\x1b[0m";

// True if an uncaught exception ended the program.
bool has_raised(const Failure& failure) { return failure.end.record.cause != LeaveCause::kOrderly; }

// The kernel does not say which process it has killed. The kernel only says that it has just killed
// a process in this cgroup.
bool probably_killed_for_memory(const WorkerEnd& end) {
  return end.process_end.signal == SIGKILL && end.memory_kills.in_cgroup > 0;
}

// The number of calls shows, for example, that a rank had fewer training batches than the others.
std::string after_calls_text(const FlightReport& record) {
  if (record.member_state == MemberState::kOutside || record.member_state == MemberState::kForming)
    return {};
  return ", after " + count_of_calls(record.counts.calls);
}

std::string end_text(const Failure& failure) {
  const ProcessEnd& end = failure.end.process_end;
  if (failure.ended_by_launcher)
    return "was ended with " + signal_name(end.signal) + " by the launcher";
  if (probably_killed_for_memory(failure.end))
    return "was probably killed by the kernel for memory (SIGKILL)";
  if (end.signal != 0) return "was " + describe(end);
  if (end.code == 0 && failure.end.record.member_state == MemberState::kOutside)
    return "ended with exit code 0 without calling init(), where others waited for it";
  if (end.code == 0)
    return "ended with exit code 0 while others still needed it" +
           after_calls_text(failure.end.record);
  return describe(end);
}

std::string headline(const Failure& failure) {
  const std::string host_text = failure.host.empty() ? "" : escape_controls(failure.host) + ", ";
  const std::string worker_text =
      format_text("rank {} ({}pid {}) ", failure.rank, host_text, failure.pid);
  if (has_raised(failure)) return worker_text + escape_controls(failure.end.record.reason);
  if (failure.ended_by_launcher)
    return worker_text + "has left the job while others still needed it: " +
           escape_controls(failure.end.record.reason);
  return worker_text + end_text(failure);
}

std::string count_of_processes(std::int64_t count) {
  return format_text("{} process{}", count, count == 1 ? "" : "es");
}

std::string memory_note(const WorkerEnd& end) {
  const MemoryKills& kills = end.memory_kills;
  const std::string kills_text =
      "the kernel has just killed " + count_of_processes(kills.in_cgroup) + " of its memory cgroup";
  if (probably_killed_for_memory(end)) return kills_text + ": raise the limit, or use less";
  if (kills.in_cgroup > 0) return kills_text + "; perhaps a child of this worker";
  if (end.process_end.signal == SIGKILL && kills.on_machine > 0)
    return "the kernel has just killed " + count_of_processes(kills.on_machine) +
           " of this machine for memory; perhaps this one";
  return {};
}

std::string last_call_text(const WorkerEnd& end) {
  const FlightReport& record = end.record;
  if (record.member_state == MemberState::kOutside) return {};
  if (record.member_state == MemberState::kForming)
    return "none; it was in init(), where it waited for the others for " +
           describe(end.at - record.since);
  if (record.calls.empty()) return "none";
  const RecordedCall& call = record.calls.back();
  const std::string time = describe(end.at - call.changed);
  switch (call.state) {
    case CallState::kWaiting:
      return describe(call) + ", which waited for other ranks for " + time;
    case CallState::kRunning:
      return describe(call) + ", which was running for " + time;
    case CallState::kDone:
      return describe(call) + ", finished " + time + " before the end";
    case CallState::kFailed:
      return describe(call) + ", failed " + time + " before the end";
  }
  return {};
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    lines.push_back(escape_controls(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

class Box {
 public:
  explicit Box(const BoxStyle& style)
      : columns_(std::clamp(style.columns, kColumnsMin, kColumnsMax)),
        has_colors_(style.has_colors) {}

  void add_border(std::string_view left, std::string_view title, std::string_view right) {
    std::string line(left);
    line += "─ " + std::string(title) + " ";
    for (int used_columns = columns_of(title) + 5; used_columns < columns_; ++used_columns)
      line += "─";
    lines_.push_back(colored(kFrameColor, line + std::string(right)));
  }
  void add(std::string_view text, bool is_headline = false) {
    for (const auto& line : wrap(text, inner_columns(), 2)) put(line, is_headline);
  }
  void add_cut(std::string_view text) { put(cut_to(text, inner_columns()), false); }
  // Adds a label with a text beside it. The text may use several lines.
  void add_row(std::string_view label, std::string_view text) {
    std::string begin = format_text("{:<12}", label);
    for (const auto& line : wrap(text, inner_columns() - static_cast<int>(begin.size()))) {
      put(begin + line, false);
      begin.assign(begin.size(), ' ');
    }
  }
  std::vector<std::string> take() { return std::move(lines_); }

 private:
  int inner_columns() const { return columns_ - 4; }
  std::string colored(std::string_view color, const std::string& text) const {
    return has_colors_ ? std::string(color) + text + std::string(kResetColor) : text;
  }
  void put(const std::string& text, bool is_headline) {
    const std::string padding(
        static_cast<std::size_t>(std::max(0, inner_columns() - columns_of(text))), ' ');
    lines_.push_back(colored(kFrameColor, "│") + " " +
                     (is_headline ? colored(kTitleColor, text) : text) + padding + " " +
                     colored(kFrameColor, "│"));
  }

  int columns_;
  bool has_colors_;
  std::vector<std::string> lines_;
};

void add_traceback(Box& box, const std::string& traceback) {
  const auto lines = lines_of(traceback);
  if (lines.empty()) return;
  const std::size_t skipped_lines = lines.size() - std::min(lines.size(), kTracebackLinesMax);
  box.add("");
  if (skipped_lines > 0)
    box.add(format_text("… {} more line{}", skipped_lines, skipped_lines == 1 ? "" : "s"));
  for (std::size_t i = skipped_lines; i < lines.size(); ++i) box.add(lines[i]);
}

}  // namespace

std::vector<std::string> failure_box(const Failure& failure, const BoxStyle& style) {
  Box box(style);
  box.add_border("╭", "farandole: the job has failed", "╮");
  box.add(headline(failure), true);
  if (has_raised(failure) || failure.ended_by_launcher) box.add_row("end", end_text(failure));
  if (const auto call = last_call_text(failure.end); !call.empty()) box.add_row("last call", call);
  if (const auto note = memory_note(failure.end); !note.empty()) box.add_row("memory", note);
  add_traceback(box, failure.end.record.traceback);
  if (!failure.other_ends.empty()) {
    box.add("");
    box.add_cut("the others: " + failure.other_ends);
  }
  box.add_border("╰", format_text("exit code {}", failure.exit_code), "╯");
  return box.take();
}

}  // namespace farandole
