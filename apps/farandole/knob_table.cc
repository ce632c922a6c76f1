#include "knob_table.h"

#include <string>

#include "base/format.h"
#include "base/knobs.h"

namespace farandole {
namespace {

std::string values_of(const KnobRow& row) {
  switch (type_of(row)) {
    case KnobType::kInteger:
      return format_text("{} to {}", row.min, row.max);
    case KnobType::kSwitch:
      return "0 or 1";
    case KnobType::kChoice:
      return std::string(row.choices);
    case KnobType::kText:
      return "text";
  }
  return {};
}

// Escapes each bar, which would otherwise end the cell of the table.
std::string escape_for_cell(std::string text) {
  for (std::size_t position = 0; (position = text.find('|', position)) != std::string::npos;
       position += 2)
    text.replace(position, 1, "\\|");
  return text;
}

std::string in_backquotes(std::string_view text) {
  return text.empty() ? std::string() : format_text("`{}`", text);
}

std::string as_is(std::string_view text) { return std::string(text); }

// Returns the older names of a knob. `format_name` formats each of them.
std::string old_names(const KnobRow& row, std::string (*format_name)(std::string_view)) {
  std::string text = format_name(row.horovod_name);
  if (!row.horovod_off_switch.empty())
    text += format_text(", and {} for 0", format_name(row.horovod_off_switch));
  return text;
}

}  // namespace

std::string knob_table_text() {
  std::string text;
  for (const KnobRow& row : kKnobs) {
    const std::string default_text = value_text(row, Knobs());
    text += format_text("{}\n    {}\n    values: {}; default: {}\n", row.name, row.help,
                        values_of(row), default_text.empty() ? "none" : default_text);
    if (!row.flag.empty()) text += format_text("    flag of `farandole run`: {}\n", row.flag);
    if (!row.horovod_name.empty())
      text += format_text("    also understood: {}\n", old_names(row, as_is));
  }
  return text;
}

std::string knob_table_markdown() {
  std::string text =
      "| Variable | Flag of `farandole run` | Values | Default | Meaning | Also understood |\n"
      "| --- | --- | --- | --- | --- | --- |\n";
  for (const KnobRow& row : kKnobs)
    text += format_text("| {} | {} | {} | {} | {} | {} |\n", in_backquotes(row.name),
                        in_backquotes(row.flag), escape_for_cell(values_of(row)),
                        in_backquotes(value_text(row, Knobs())),
                        escape_for_cell(std::string(row.help)), old_names(row, in_backquotes));
  return text;
}

}  // namespace farandole
