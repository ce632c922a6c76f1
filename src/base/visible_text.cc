#include "base/visible_text.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/format.h"

namespace farandole {
namespace {

// One code point and its length in bytes; `is_valid` is false for a byte that is not UTF-8.
struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 1;
  bool is_valid = true;
};

std::uint32_t byte_at(std::string_view text, std::size_t at) {
  return static_cast<unsigned char>(text[at]);
}

Character first_character(std::string_view text) {
  const std::uint32_t lead = byte_at(text, 0);
  if (lead < 0x80) return {lead, 1, true};
  const std::size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return {lead, 1, false};
  std::uint32_t code = lead & (0xFFU >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte_at(text, i) & 0xC0U) != 0x80) return {lead, 1, false};
    code = code << 6U | (byte_at(text, i) & 0x3FU);
  }
  constexpr std::array<std::uint32_t, 5> kSmallestCode{0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < kSmallestCode[bytes] || surrogate || code > 0x10FFFF) return {lead, 1, false};
  return {code, bytes, true};
}

struct Range {
  std::uint32_t first;
  std::uint32_t last;
};

template <std::size_t kCount>
bool is_in(std::uint32_t code, const std::array<Range, kCount>& ranges) {
  return std::ranges::any_of(
      ranges, [code](const Range& range) { return code >= range.first && code <= range.last; });
}

// The C0 and C1 controls, line separators, and characters that hide the text after them or change
// its direction.
constexpr std::array<Range, 6> kControls{{{0, 0x1F},
                                          {0x7F, 0x9F},
                                          {0x200E, 0x200F},
                                          {0x2028, 0x202E},
                                          {0x2066, 0x2069},
                                          {0xFEFF, 0xFEFF}}};
// Combining marks: they are drawn on the character before them and take no column.
constexpr std::array<Range, 4> kZeroWidth{
    {{0x300, 0x36F}, {0x200B, 0x200D}, {0x20D0, 0x20FF}, {0xFE00, 0xFE0F}}};
// East Asian letters and pictures take two columns.
constexpr std::array<Range, 8> kWide{{{0x1100, 0x115F},
                                      {0x2E80, 0xA4CF},
                                      {0xAC00, 0xD7A3},
                                      {0xF900, 0xFAFF},
                                      {0xFE30, 0xFE6F},
                                      {0xFF00, 0xFF60},
                                      {0x1F300, 0x1FAFF},
                                      {0x20000, 0x3FFFD}}};

int columns_of_code(std::uint32_t code) {
  if (is_in(code, kZeroWidth)) return 0;
  return is_in(code, kWide) ? 2 : 1;
}

// How many bytes from the beginning of the text fit into this many columns.
std::size_t bytes_that_fit(std::string_view text, int columns) {
  std::size_t bytes = 0;
  while (bytes < text.size()) {
    const Character character = first_character(text.substr(bytes));
    columns -= columns_of_code(character.code);
    if (columns < 0) break;
    bytes += character.bytes;
  }
  return bytes;
}

}  // namespace

std::string escape_controls(std::string_view text) {
  std::string visible;
  while (!text.empty()) {
    const Character character = first_character(text);
    if (character.code == '\t')
      visible += "    ";
    else if (!character.is_valid || (character.code < 0x100 && is_in(character.code, kControls)))
      visible += format_text("\\x{:02x}", character.code);
    else if (is_in(character.code, kControls))
      visible += format_text("\\u{:04x}", character.code);
    else
      visible += text.substr(0, character.bytes);
    text.remove_prefix(character.bytes);
  }
  return visible;
}

int columns_of(std::string_view text) {
  int columns = 0;
  while (!text.empty()) {
    const Character character = first_character(text);
    columns += columns_of_code(character.code);
    text.remove_prefix(character.bytes);
  }
  return columns;
}

std::string cut_to(std::string_view text, int columns) {
  if (columns_of(text) <= columns) return std::string(text);
  return std::string(text.substr(0, bytes_that_fit(text, columns - 1))) + "…";
}

std::vector<std::string> wrap(std::string_view text, int columns, int extra_indent) {
  const std::size_t own_indent = std::min(text.find_first_not_of(' '), text.size());
  const std::string indent(
      std::min<std::size_t>(own_indent, 8) + static_cast<std::size_t>(extra_indent), ' ');
  std::vector<std::string> lines;
  std::string begin;
  for (;;) {
    const int available = columns - static_cast<int>(begin.size());
    std::size_t bytes = bytes_that_fit(text, available);
    if (bytes == text.size()) break;
    const std::size_t space = text.substr(0, bytes + 1).rfind(' ');
    // Breaks at a space only if it is in the second half of the line, so that no line stays almost
    // empty. Otherwise cuts a word.
    if (space != std::string_view::npos && space > bytes / 2) bytes = space;
    const std::size_t end = text.substr(0, bytes).find_last_not_of(' ') + 1;
    lines.push_back(begin + std::string(text.substr(0, end)));
    text.remove_prefix(bytes);
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    begin = indent;
    if (text.empty()) return lines;
  }
  lines.push_back(begin + std::string(text));
  return lines;
}

}  // namespace farandole
