#include "doctor.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/format.h"
#include "base/visible_text.h"
#include "doctor/doctor_check.h"
#include "doctor/doctor_frameworks.h"
#include "doctor/doctor_kernel.h"
#include "doctor/doctor_machine.h"
#include "output/colors.h"

namespace farandole {
namespace {

struct StateRow {
  std::string_view name;
  Color color;
};
// Indexed by Health.
constexpr std::array<StateRow, 4> kStates{{{"works", Color::kGreen},
                                           {"limited", Color::kYellow},
                                           {"does not work", Color::kRed},
                                           {"not installed", Color::kDim}}};

struct Row {
  std::string name;
  bool is_essential;
  Finding finding;

  bool is_fatal() const {
    return is_essential && finding.health != Health::kWorks && finding.health != Health::kLimited;
  }
  const StateRow& state() const { return kStates.at(static_cast<std::size_t>(finding.health)); }
};

std::vector<Row> all_rows() {
  std::vector<Row> rows;
  for (const auto& checks : {kernel_checks(), machine_checks(), framework_checks()})
    for (const Check& check : checks) {
      const auto findings = findings_of(check);
      for (std::size_t i = 0; i < findings.size(); ++i)
        rows.push_back({check.names.at(i), check.essential, findings[i]});
    }
  return rows;
}

// Texts from other programs, such as an error of Python, may have several lines and control
// characters.
std::string as_one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return escape_controls(text);
}

std::string table_text(const std::vector<Row>& rows, bool colors) {
  std::size_t width = 0;
  for (const Row& row : rows) width = std::max(width, row.name.size());
  std::string text;
  for (const Row& row : rows) {
    const std::string state = format_text("{:<13}", row.state().name);
    text += format_text("{:<{}}  {}  {}\n", row.name, width,
                        colors ? in_color(state, row.state().color) : state,
                        as_one_line(row.finding.found));
    if (!row.finding.advice.empty())
      text += format_text("{:{}}  to do: {}\n", "", width + 15, as_one_line(row.finding.advice));
  }
  return text;
}

std::string json_text(const std::vector<Row>& rows) {
  auto list = nlohmann::ordered_json::array();
  for (const Row& row : rows)
    list.push_back({{"name", row.name},
                    {"state", row.state().name},
                    {"found", row.finding.found},
                    {"to_do", row.finding.advice},
                    {"essential", row.is_essential}});
  // Paths may contain bytes that are not UTF-8.
  return list.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string overall_result(const std::vector<Row>& rows) {
  std::string missing;
  for (const Row& row : rows)
    if (row.is_fatal()) missing += (missing.empty() ? "" : ", ") + row.name;
  return missing.empty() ? "Jobs can run here." : "Jobs cannot run here, because of: " + missing;
}

}  // namespace

int run_doctor(bool as_json) {
  const auto rows = all_rows();
  const bool has_fatal_row =
      std::ranges::any_of(rows, [](const Row& row) { return row.is_fatal(); });
  const std::string text = as_json ? json_text(rows)
                                   : table_text(rows, can_show_colors(STDOUT_FILENO)) + "\n" +
                                         overall_result(rows) + "\n";
  std::fputs(text.c_str(), stdout);
  return has_fatal_row ? 1 : 0;
}

}  // namespace farandole
