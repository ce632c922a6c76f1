// Formats text. Only format.cc compiles fmt's code: fmt/format.h doubles the compile time of every
// file that includes it.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>

namespace farandole {

std::string format_values(fmt::string_view format, fmt::format_args values);

// Formats the values in the syntax of fmt. The compiler checks that they fit the format.
template <class... Values>
std::string format_text(fmt::format_string<Values...> format, Values&&... values) {
  return format_values(format, fmt::make_format_args(values...));
}

// Returns the values one after another, with the separator between two values.
template <class Range>
std::string join_text(const Range& values, std::string_view separator) {
  std::string text;
  bool first = true;
  for (const auto& value : values) {
    if (!first) text += separator;
    first = false;
    text += format_text("{}", value);
  }
  return text;
}

}  // namespace farandole
