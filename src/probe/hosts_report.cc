#include "probe/hosts_report.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "base/visible_text.h"
#include "output/colors.h"

namespace farandole {
namespace {

constexpr std::size_t kTableHostsMax = 8;
constexpr std::size_t kProblemsMax = 20;
constexpr int kGap = 2;             // spaces between two columns
constexpr int kCellColumnsMin = 8;  // the smallest width of a column
constexpr std::string_view kUnknown = "-";

// A row of a table: its first cell is a label, and each other cell belongs to a host. A cell may
// have several lines.
struct Row {
  std::string label;
  std::vector<std::vector<std::string>> cells;
  bool is_marked = false;
};

std::string padded(const std::string& text, int columns) {
  return text + std::string(static_cast<std::size_t>(std::max(0, columns - columns_of(text))), ' ');
}

int width_of(const std::vector<Row>& rows, std::size_t cell) {
  int width = kCellColumnsMin;
  for (const Row& row : rows)
    for (const std::string& line : row.cells[cell]) width = std::max(width, columns_of(line));
  return width;
}

std::string trimmed(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

// Returns the lines of the cells in the range [cells.first, cells.second).
std::string table_part(const std::vector<Row>& rows, int label_width,
                       std::pair<std::size_t, std::size_t> cells, bool has_colors) {
  std::string text;
  for (const Row& row : rows) {
    std::size_t height = 1;
    for (std::size_t cell = cells.first; cell < cells.second; ++cell)
      height = std::max(height, row.cells[cell].size());
    for (std::size_t number = 0; number < height; ++number) {
      std::string line = padded(number == 0 ? row.label : "", label_width);
      for (std::size_t cell = cells.first; cell < cells.second; ++cell) {
        const auto& lines = row.cells[cell];
        line += std::string(kGap, ' ') +
                padded(number < lines.size() ? lines[number] : "", width_of(rows, cell));
      }
      if (row.is_marked && number == 0) line = trimmed(line) + "  <- differs";
      line = trimmed(line);
      text += (row.is_marked && has_colors ? in_color(line, Color::kYellow) : line) + "\n";
    }
  }
  return text;
}

// Splits a table that is too wide into parts, one below the other.
std::string table(const std::vector<Row>& rows, const ReportStyle& style) {
  constexpr int kMarkColumns = 12;  // "  <- differs"
  int label_width = 0;
  bool has_marks = false;
  for (const Row& row : rows) {
    label_width = std::max(label_width, columns_of(row.label));
    has_marks = has_marks || row.is_marked;
  }
  const int columns_left = style.columns - label_width - (has_marks ? kMarkColumns : 0);
  std::string text;
  const std::size_t count = rows.front().cells.size();
  for (std::size_t first = 0; first < count;) {
    std::size_t last = first;
    int used_columns = 0;
    while (last < count &&
           (last == first || used_columns + kGap + width_of(rows, last) <= columns_left)) {
      used_columns += kGap + width_of(rows, last);
      ++last;
    }
    if (first > 0) text += "\n";
    text += table_part(rows, label_width, {first, last}, style.has_colors);
    first = last;
  }
  return text;
}

std::string memory_text(std::int64_t bytes) {
  return format_text("{:.1f} GiB", static_cast<double>(bytes) / (1024.0 * 1024 * 1024));
}

std::string clock_text(const std::optional<ClockReading>& clock) {
  if (!clock) return std::string(kUnknown);
  const double error = clock->error_seconds;
  if (std::abs(clock->offset_seconds) <= error) return format_text("same, ±{:.1f} ms", error * 1e3);
  if (std::abs(clock->offset_seconds) < 1)
    return format_text("{:+.1f} ms ±{:.1f}", clock->offset_seconds * 1e3, error * 1e3);
  return format_text("{:+.1f} s", clock->offset_seconds);
}

std::string address_text(const HostFacts& facts) {
  if (facts.addresses.empty()) return std::string(kUnknown);
  return escape_controls(ip_of(facts.addresses.front().address));
}

using CellText = std::function<std::string(const HostReport&)>;

Row row_of(const Survey& survey, const std::string& label, bool marks_differences,
           const CellText& text) {
  Row row{.label = label, .cells = {}};
  std::vector<std::string> known_cells;
  for (const HostReport& host : survey.hosts) {
    const std::string cell = escape_controls(text(host));
    if (host.facts) known_cells.push_back(cell);
    row.cells.push_back({cell});
  }
  row.is_marked = marks_differences &&
                  std::ranges::adjacent_find(known_cells, std::not_equal_to()) != known_cells.end();
  return row;
}

CellText text_from_facts(const std::function<std::string(const HostFacts&)>& text) {
  return [text](const HostReport& host) {
    return host.facts ? text(*host.facts) : std::string(kUnknown);
  };
}

std::string version_of(const HostFacts& facts, const std::string& package) {
  const auto package_found = std::ranges::find(facts.packages, package, &Package::name);
  const bool is_known = package_found != facts.packages.end() && !package_found->version.empty();
  return is_known ? package_found->version : std::string(kUnknown);
}

// Returns the packages that at least one host has installed, in the order in which they are found.
std::vector<std::string> installed_packages(const Survey& survey) {
  std::vector<std::string> names;
  for (const HostReport& host : survey.hosts) {
    if (!host.facts) continue;
    for (const Package& package : host.facts->packages)
      if (!package.version.empty() && std::ranges::find(names, package.name) == names.end())
        names.push_back(package.name);
  }
  return names;
}

std::string hosts_table(const Survey& survey, const ReportStyle& style) {
  const auto add = [&](std::vector<Row>& rows, const std::string& label, bool marks_differences,
                       const CellText& text) {
    rows.push_back(row_of(survey, label, marks_differences, text));
  };
  std::vector<Row> rows;
  add(rows, "host", false, [](const HostReport& host) { return host.name; });
  add(rows, "address", false, text_from_facts(address_text));
  add(rows, "farandole", true,
      text_from_facts([](const HostFacts& facts) { return facts.version; }));
  add(rows, "kernel", true, text_from_facts([](const HostFacts& facts) { return facts.kernel; }));
  for (const std::string& name : installed_packages(survey))
    add(rows, name, true,
        text_from_facts([name](const HostFacts& facts) { return version_of(facts, name); }));
  add(rows, "cores", true,
      text_from_facts([](const HostFacts& facts) { return std::to_string(facts.cores); }));
  add(rows, "memory", true,
      text_from_facts([](const HostFacts& facts) { return memory_text(facts.memory_bytes); }));
  add(rows, "clock", false, [](const HostReport& host) { return clock_text(host.clock); });
  return table(rows, style);
}

std::string round_trip_text(double seconds) {
  if (seconds <= 0) return "not measured";
  return format_text("{:.2f} ms", seconds * 1e3);
}

std::string rate_text(double bytes_per_second) {
  const double bits = bytes_per_second * 8;
  if (bits <= 0) return "";
  if (bits >= 1e9) return format_text("{:.1f} Gbit/s", bits / 1e9);
  return format_text("{:.1f} Mbit/s", bits / 1e6);
}

std::vector<std::string> connection_cell(const Survey& survey, std::size_t from, std::size_t to) {
  if (from == to) return {""};
  const Attempt* attempt = used_attempt(survey, from, to);
  if (attempt == nullptr) return {"not tried"};
  const std::string ip = escape_controls(ip_of(attempt->address));
  if (attempt->failure != ConnectFailure::kNone) return {ip, short_text(attempt->failure)};
  return {ip, round_trip_text(attempt->round_trip_seconds), rate_text(attempt->bytes_per_second)};
}

std::string connections_table(const Survey& survey, const ReportStyle& style) {
  if (survey.hosts.size() < 2) return "";
  std::vector<Row> rows{{.label = "from \\ to", .cells = {}}};
  for (const HostReport& host : survey.hosts)
    rows.front().cells.push_back({escape_controls(host.name)});
  for (std::size_t from = 0; from < survey.hosts.size(); ++from) {
    Row row{.label = escape_controls(survey.hosts[from].name), .cells = {}};
    for (std::size_t to = 0; to < survey.hosts.size(); ++to)
      row.cells.push_back(connection_cell(survey, from, to));
    rows.push_back(std::move(row));
  }
  return "\n" + table(rows, style);
}

// One line for the connections of many hosts.
std::string summary(const Survey& survey, int columns) {
  std::size_t connection_count = 0;
  std::size_t working_count = 0;
  std::vector<double> round_trips;
  std::vector<double> rates;
  for (std::size_t from = 0; from < survey.hosts.size(); ++from)
    for (std::size_t to = 0; to < survey.hosts.size(); ++to) {
      if (from == to) continue;
      ++connection_count;
      const Attempt* attempt = used_attempt(survey, from, to);
      if (attempt == nullptr || attempt->failure != ConnectFailure::kNone) continue;
      ++working_count;
      if (attempt->round_trip_seconds > 0) round_trips.push_back(attempt->round_trip_seconds);
      if (attempt->bytes_per_second > 0) rates.push_back(attempt->bytes_per_second);
    }
  std::string text = format_text("{} hosts; {} of {} connections work", survey.hosts.size(),
                                 working_count, connection_count);
  if (!round_trips.empty()) {
    const auto [least, most] = std::ranges::minmax(round_trips);
    text += format_text("; round trips {} to {}", round_trip_text(least), round_trip_text(most));
  }
  if (!rates.empty()) {
    const auto [least, most] = std::ranges::minmax(rates);
    text += format_text("; rates {} to {}", rate_text(least), rate_text(most));
  }
  return join_text(wrap(text, columns), "\n") + "\n";
}

std::string problem_text(const Problem& problem, bool shows_advice, const ReportStyle& style) {
  const std::string state = padded(problem.is_fatal ? "does not work" : "limited", 13);
  const std::string indent(15, ' ');
  const int columns = style.columns - static_cast<int>(indent.size());
  const auto indented = [&](const std::string& content) {
    std::string text;
    for (const std::string& line : wrap(escape_controls(content), columns))
      text += (text.empty() ? "" : indent) + line + "\n";
    return text;
  };
  std::string text =
      (style.has_colors ? in_color(state, problem.is_fatal ? Color::kRed : Color::kYellow)
                        : state) +
      "  " + indented(problem.found);
  if (shows_advice) text += indent + indented("to do: " + problem.advice);
  return text;
}

}  // namespace

std::string hosts_report(const Survey& survey, const std::vector<Problem>& problems,
                         const ReportStyle& style) {
  std::string text = survey.hosts.size() > kTableHostsMax
                         ? summary(survey, style.columns)
                         : hosts_table(survey, style) + connections_table(survey, style);
  if (!problems.empty()) text += "\n";
  std::string last_advice;  // advice that several problems share is shown once
  for (const Problem& problem :
       std::span(problems).first(std::min(problems.size(), kProblemsMax))) {
    text += problem_text(problem, problem.advice != last_advice && !problem.advice.empty(), style);
    last_advice = problem.advice;
  }
  if (problems.size() > kProblemsMax)
    text += format_text("{:15}{} more problems; `--json` shows all\n", "",
                        problems.size() - kProblemsMax);
  const bool works = std::ranges::none_of(problems, &Problem::is_fatal);
  return text + (works ? "\nA job over these hosts works.\n"
                       : "\nA job over these hosts does not work.\n");
}

}  // namespace farandole
