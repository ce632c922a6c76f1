#include "diagnosis/call_text.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string_view>

#include "base/format.h"
#include "base/visible_text.h"

namespace farandole {
namespace {

// The flight record cuts a long name, possibly inside a UTF-8 character. So the last character of a
// cut name may be incomplete, and this function drops it unless it is ASCII.
std::string name_of(const RecordedCall& call) {
  if (call.name.size() < kFlightNameBytes) return escape_controls(call.name);
  std::string_view name = call.name;
  while (!name.empty() && (static_cast<unsigned char>(name.back()) & 0xC0U) == 0x80)
    name.remove_suffix(1);
  if (!name.empty() && static_cast<unsigned char>(name.back()) >= 0xC0) name.remove_suffix(1);
  return escape_controls(name) + "…";
}

}  // namespace

std::string title_of(const RecordedCall& call) {
  return format_text("{} `{}`", row_of(call.operation).name, name_of(call));
}

std::string describe(const RecordedCall& call) {
  std::string details;
  if (row_of(call.operation).output_rule != OutputRule::kNone)
    details = format_text(
        "{}, {} element{}", row_of(call.dtype).name,
        with_commas(static_cast<std::uint64_t>(std::max<std::int64_t>(call.elements, 0))),
        call.elements == 1 ? "" : "s");
  if (call.group != kWorld)
    details += format_text("{}group {}", details.empty() ? "" : ", ", call.group);
  return details.empty() ? title_of(call) : format_text("{} ({})", title_of(call), details);
}

std::string describe(Duration time) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
  if (ms < 1000) return format_text("{} ms", ms);
  if (ms < 100'000) return format_text("{}.{} s", ms / 1000, ms % 1000 / 100);
  return format_text("{} min {} s", ms / 60'000, ms % 60'000 / 1000);
}

std::string with_commas(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (auto at = static_cast<std::int64_t>(text.size()) - 3; at > 0; at -= 3)
    text.insert(static_cast<std::size_t>(at), 1, ',');
  return text;
}

std::string count_of_calls(std::uint64_t number) {
  return format_text("{} call{}", with_commas(number), number == 1 ? "" : "s");
}

}  // namespace farandole
