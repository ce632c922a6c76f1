#include "base/knobs.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <type_traits>

#include "base/check.h"
#include "base/format.h"
#include "base/try.h"

namespace farandole {
namespace {

constexpr std::string_view kTrueWords = "1|true|on|yes";

std::string in_lower_case(std::string_view text) {
  std::string lowered(text);
  std::ranges::transform(lowered, lowered.begin(), [](unsigned char letter) {
    return static_cast<char>(std::tolower(letter));
  });
  return lowered;
}

bool is_one_of(std::string_view word, std::string_view choices) {
  while (!choices.empty()) {
    const auto end = std::min(choices.find('|'), choices.size());
    if (choices.substr(0, end) == word) return true;
    choices.remove_prefix(std::min(end + 1, choices.size()));
  }
  return false;
}

std::string allowed_values(const KnobRow& row) {
  switch (type_of(row)) {
    case KnobType::kInteger:
      return format_text("a whole number from {} to {}", row.min, row.max);
    case KnobType::kSwitch:
      return "0 or 1";
    case KnobType::kChoice:
      return format_text("one of {}", row.choices);
    case KnobType::kText:
      return "text";
  }
  CHECK(false, "every type of knob lists its allowed values");
  return {};
}

// Each overload returns false if the text is not an allowed value.

bool parse(const KnobRow& row, std::string_view text, std::string& value) {
  value = row.choices.empty() ? std::string(text) : in_lower_case(text);
  return row.choices.empty() || is_one_of(value, row.choices);
}

bool parse(const KnobRow& /*row*/, std::string_view text, bool& value) {
  const std::string word = in_lower_case(text);
  value = is_one_of(word, kTrueWords);
  return value || is_one_of(word, "0|false|off|no");
}

template <class Value>
bool parse(const KnobRow& row, std::string_view text, Value& value) {
  std::int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [parse_end, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || parse_end != end || number < row.min || number > row.max)
    return false;
  if constexpr (std::is_integral_v<Value>)
    value = static_cast<Value>(number);
  else
    value = std::chrono::seconds(number);
  return true;
}

std::string text_of(const std::string& value) { return value; }

template <class Value>
std::string text_of(const Value& value) {
  if constexpr (std::is_integral_v<Value>)
    return std::to_string(value);
  else
    return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(value).count());
}

// The environment variable that sets a knob, and its text. `variable` is empty if no variable sets
// the knob.
struct KnobSource {
  std::string_view variable;
  std::string_view text;
};

KnobSource source_of(const KnobRow& row, const Environment& environment) {
  const auto value = [&](std::string_view name) { return variable_text(environment, name); };
  if (const auto text = value(row.name); !text.empty()) return {row.name, text};
  if (is_one_of(in_lower_case(value(row.horovod_off_switch)), kTrueWords))
    return {row.horovod_off_switch, "0"};
  if (const auto text = value(row.horovod_name); !text.empty()) return {row.horovod_name, text};
  return {};
}

}  // namespace

std::string_view variable_text(const Environment& environment, std::string_view name) {
  const char* const value = name.empty() ? nullptr : environment(std::string(name).c_str());
  return value == nullptr ? std::string_view() : value;
}

std::map<std::string, std::string> Knobs::same_on_all_ranks() const {
  std::map<std::string, std::string> values;
  for (const KnobRow& row : kKnobs)
    if (row.same_on_all_ranks) values.emplace(row.name, value_text(row, *this));
  return values;
}

KnobType type_of(const KnobRow& row) {
  Knobs knobs;
  const KnobField field = row.field(knobs);
  if (std::holds_alternative<bool*>(field)) return KnobType::kSwitch;
  if (!std::holds_alternative<std::string*>(field)) return KnobType::kInteger;
  return row.choices.empty() ? KnobType::kText : KnobType::kChoice;
}

const KnobRow& knob_named(std::string_view name) {
  const auto* const row = std::ranges::find(kKnobs, name, &KnobRow::name);
  CHECK(row != kKnobs.end(), "a knob has this name");
  return *row;
}

std::string value_text(const KnobRow& row, const Knobs& knobs) {
  Knobs copy = knobs;
  return std::visit([](const auto* value) { return text_of(*value); }, row.field(copy));
}

bool is_set(const KnobRow& row, const Environment& environment) {
  return !source_of(row, environment).variable.empty();
}

Status read_knobs(Knobs& knobs, const Environment& environment) {
  for (const KnobRow& row : kKnobs) {
    const KnobSource source = source_of(row, environment);
    if (source.variable.empty()) continue;
    const Status status = set_knob(knobs, row, source.variable, source.text);
    if (!status.ok()) return Status::fix_call(status.message() + ". Correct it or unset it.");
  }
  return {};
}

std::string timeline_path_of(const Knobs& knobs) {
  return knobs.timeline_path == "DYNAMIC" ? std::string() : knobs.timeline_path;
}

std::chrono::seconds stall_warning_time(const Knobs& knobs) {
  if (knobs.stall_limit.count() == 0) return knobs.stall_warning;
  const auto latest_warning = std::max(knobs.stall_limit / 2, std::chrono::seconds(1));
  return knobs.stall_warning.count() == 0 ? latest_warning
                                          : std::min(knobs.stall_warning, latest_warning);
}

Status set_knob(Knobs& knobs, const KnobRow& row, std::string_view shown_name,
                std::string_view text) {
  const auto parse_into = [&](auto* value) { return parse(row, text, *value); };
  if (std::visit(parse_into, row.field(knobs))) return {};
  return Status::fix_call(
      format_text("{} is \"{}\"; it must be {}", shown_name, text, allowed_values(row)));
}

}  // namespace farandole
