#include "base/whole_number.h"

#include <charconv>

#include "base/format.h"

namespace farandole {

Result<int> parse_whole_number(std::string_view flag, const std::string& text, int min, int max) {
  int number = 0;
  const char* end = text.data() + text.size();
  const auto [parse_end, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && parse_end == end && number >= min && number <= max) return number;
  return Status::fix_call(
      format_text("{} is \"{}\"; it must be a whole number from {} to {}", flag, text, min, max));
}

}  // namespace farandole
