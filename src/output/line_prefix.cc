#include "output/line_prefix.h"

#include <algorithm>
#include <array>
#include <ctime>

#include "base/format.h"
#include "base/visible_text.h"

namespace farandole {
namespace {

struct FieldRow {
  std::string_view name;
  std::string (*text)(const LineOrigin&);
};

// Returns the local time with milliseconds, as in log lines.
std::string time_text(const LineOrigin& origin) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(origin.time);
  const auto since_epoch =
      std::chrono::floor<std::chrono::milliseconds>(origin.time.time_since_epoch());
  std::tm local_time{};
  ::localtime_r(&seconds, &local_time);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &local_time);
  return format_text("{}.{:03}", text.data(), since_epoch.count() % 1000);
}

constexpr std::array<FieldRow, 6> kFields{{
    {"rank", [](const LineOrigin& origin) { return std::to_string(origin.rank); }},
    {"local_rank", [](const LineOrigin& origin) { return std::to_string(origin.local_rank); }},
    {"host", [](const LineOrigin& origin) { return std::string(origin.host); }},
    {"pid", [](const LineOrigin& origin) { return std::to_string(origin.pid); }},
    {"stream", [](const LineOrigin& origin) { return std::string(origin.stream); }},
    {"time", time_text},
}};
constexpr std::size_t kNoField = kFields.size();

std::size_t field_named(std::string_view name) {
  const auto row = std::find_if(kFields.begin(), kFields.end(),
                                [&](const FieldRow& field) { return field.name == name; });
  return static_cast<std::size_t>(row - kFields.begin());
}

Status single_brace_error(char brace) {
  return Status::fix_call(
      format_text("a single `{0}` stands alone; write a field as {{rank}}, and the character `{0}` "
                  "itself as {0}{0}",
                  brace));
}

}  // namespace

LinePrefix::LinePrefix()
    : contents_{{"[", kNoField}, {"", field_named("rank")}, {"] ", kNoField}} {}

std::string LinePrefix::field_names() {
  std::string names;
  for (const FieldRow& row : kFields)
    names += format_text("{}{{{}}}", names.empty() ? "" : ", ", row.name);
  return names;
}

Result<LinePrefix> LinePrefix::parse(std::string_view pattern) {
  std::string without_tabs(pattern);
  std::erase(without_tabs, '\t');
  if (escape_controls(without_tabs) != without_tabs)
    return Status::fix_call(
        "it may not contain line ends, other control characters, characters that change the "
        "writing direction, or invalid UTF-8");
  LinePrefix prefix;
  prefix.contents_.clear();
  while (!pattern.empty()) {
    const char letter = pattern.front();
    const bool is_brace = letter == '{' || letter == '}';
    const bool is_doubled = is_brace && pattern.substr(1).starts_with(letter);
    if (!is_brace || is_doubled) {
      prefix.contents_.push_back({std::string(1, letter), kNoField});
      pattern.remove_prefix(is_doubled ? 2 : 1);
      continue;
    }
    const std::size_t end = pattern.find('}');
    if (letter == '}' || end == std::string_view::npos) return single_brace_error(letter);
    const std::string_view name = pattern.substr(1, end - 1);
    const std::size_t field = field_named(name);
    if (field == kNoField)
      return Status::fix_call(
          format_text("there is no field {{{}}}; the fields are {}", name, field_names()));
    prefix.contents_.push_back({"", field});
    pattern.remove_prefix(end + 1);
  }
  return prefix;
}

std::string LinePrefix::text(const LineOrigin& origin) const {
  std::string text;
  for (const FieldOrText& field_or_text : contents_)
    text += field_or_text.field == kNoField ? field_or_text.literal
                                            : kFields[field_or_text.field].text(origin);
  return text;
}

int LinePrefix::columns(const LineOrigin& origin) const { return columns_of(text(origin)); }

}  // namespace farandole
