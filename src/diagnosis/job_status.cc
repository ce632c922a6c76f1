#include "diagnosis/job_status.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "base/rank_names.h"
#include "base/visible_text.h"
#include "diagnosis/call_text.h"

namespace farandole {
namespace {

constexpr std::string_view kReset = "\x1b[0m";
constexpr std::string_view kBold = "\x1b[1m";
constexpr std::string_view kYellow = "\x1b[33m";
constexpr std::string_view kRed = "\x1b[31m";

std::string_view color_of(RankState state) {
  switch (state) {
    case RankState::kWaits:
    case RankState::kForming:
      return kYellow;
    case RankState::kStopped:
    case RankState::kLeft:
    case RankState::kEnded:
      return kRed;
    default:
      return {};
  }
}

// Collects the lines of the table. It cuts a text before it adds colors, so that color codes stay
// whole.
class TableLines {
 public:
  explicit TableLines(const TableStyle& style) : style_(style) {}

  void add(std::string_view text, std::string_view color = {}) { add_row({}, text, color); }
  // Adds a line with `numbers` and then `text`. Only `text` is cut and colored.
  void add_row(const std::string& numbers, std::string_view text, std::string_view color) {
    const std::string cut_text = cut_to(text, std::max(1, style_.columns - columns_of(numbers)));
    const bool is_colored = style_.has_colors && !color.empty();
    lines_.push_back(numbers +
                     (is_colored ? std::string(color).append(cut_text).append(kReset) : cut_text));
  }
  std::vector<std::string> take() { return std::move(lines_); }

 private:
  const TableStyle& style_;
  std::vector<std::string> lines_;
};

// Returns "1023 KiB" or "3.2 GiB": at most eight columns.
std::string size_text(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 7> kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto size = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; size >= 1023.5 && unit + 1 < kUnits.size(); ++unit) size /= 1024;
  const bool shows_whole_number = unit == 0 || size >= 99.95;
  return format_text("{:.{}f} {}", size, shows_whole_number ? 0 : 1, kUnits.at(unit));
}

// Returns "12.3 s", "83 min" or "2.0 h": shorter than describe(), which writes minutes and seconds.
std::string time_text(Duration time) {
  const double seconds = std::chrono::duration<double>(time).count();
  if (seconds < 100) return format_text("{:.1f} s", seconds);
  return seconds < 6000 ? format_text("{:.0f} min", seconds / 60)
                        : format_text("{:.1f} h", seconds / 3600);
}

std::string waited_share_text(const RankStatus& rank) {
  if (!rank.time_in_job || rank.time_in_job->count() == 0) return "–";
  const auto share = static_cast<double>(rank.counts.blocked.count()) /
                     static_cast<double>(rank.time_in_job->count());
  return format_text("{:.0f} %", 100 * std::min(share, 1.0));
}

// Adds a line for each call that waits for other ranks. Ranks that wait in the same call share a
// line.
void add_waits(const JobStatus& job, TableLines& lines) {
  std::map<std::pair<GroupId, std::uint64_t>, std::vector<int>> ranks_by_call;
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    const auto& call = job.ranks[rank].call;
    if (call && job.ranks[rank].state == RankState::kWaits)
      ranks_by_call[{call->group, call->name_hash}].push_back(job.first_rank +
                                                              static_cast<int>(rank));
  }
  for (const auto& [key, ranks] : ranks_by_call) {
    const RankStatus& first_status =
        job.ranks[static_cast<std::size_t>(ranks.front() - job.first_rank)];
    lines.add(format_text("{} {} for {} in {}", ranks_text(ranks),
                          ranks.size() == 1 ? "waits" : "wait", ranks_text(first_status.waits_for),
                          describe(*first_status.call)));
  }
}

// Returns "4 ranks", or "ranks 2-3 of 8" if the others are unknown, or "4 ranks on other hosts" if
// no rank is on this host.
std::string shown_ranks_text(const JobStatus& job) {
  const auto shown_count = static_cast<int>(job.ranks.size());
  if (shown_count == job.size)
    return format_text("{} {}", shown_count, shown_count == 1 ? "rank" : "ranks");
  if (shown_count == 0)
    return format_text("{} {} on other hosts", job.size, job.size == 1 ? "rank" : "ranks");
  std::vector<int> ranks;
  for (int i = 0; i < shown_count; ++i) ranks.push_back(job.first_rank + i);
  return format_text("{} of {}", ranks_text(ranks), job.size);
}

// Returns the cells of a column: the title, and a text for each rank. All cells have the same
// width, with a space at the end.
std::vector<std::string> column_of(const JobStatus& job, const std::string& title,
                                   std::string RankStatus::* field) {
  constexpr int kWidthMax = 16;
  std::vector<std::string> column{title};
  for (const RankStatus& rank : job.ranks)
    column.push_back(cut_to(escape_controls(rank.*field), kWidthMax));
  int width = 0;
  for (const auto& name : column) width = std::max(width, columns_of(name));
  for (auto& name : column)
    for (int columns = columns_of(name); columns <= width; ++columns) name += ' ';
  return column;
}

// The names of the hosts. Empty texts if all ranks are on this host.
std::vector<std::string> host_column(const JobStatus& job) {
  if (job.size != job.local_size) return column_of(job, "host", &RankStatus::host);
  return std::vector<std::string>(job.ranks.size() + 1);
}

// The hardware threads of the ranks. Empty texts if no rank is bound.
std::vector<std::string> cores_column(const JobStatus& job) {
  if (!std::ranges::all_of(job.ranks, &std::string::empty, &RankStatus::cores))
    return column_of(job, "cores", &RankStatus::cores);
  return std::vector<std::string>(job.ranks.size() + 1);
}

}  // namespace

std::vector<std::string> job_table(const JobStatus& job, const TableStyle& style) {
  TableLines lines(style);
  const std::vector<std::string> hosts = host_column(job);
  const std::vector<std::string> cores = cores_column(job);
  lines.add(
      format_text("job {} on {}: {}, for {}", job.pid, escape_controls(job.host),
                  shown_ranks_text(job), describe(std::max(job.read_at - job.started, Duration()))),
      kBold);
  lines.add("  " + escape_controls(job.command));
  lines.add(format_text("rank {}{}    pid      calls    bytes   waited share  now", hosts.front(),
                        cores.front()));
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    const RankStatus& status = job.ranks[rank];
    lines.add_row(
        format_text("{:>4} {}{}{:>7} {:>10} {:>8} {:>8} {:>5}  ",
                    job.first_rank + static_cast<int>(rank), hosts[rank + 1], cores[rank + 1],
                    status.pid, with_commas(status.counts.calls), size_text(status.counts.bytes),
                    time_text(status.counts.blocked), waited_share_text(status)),
        describe(status, job.read_at), color_of(status.state));
  }
  add_waits(job, lines);
  return lines.take();
}

}  // namespace farandole
