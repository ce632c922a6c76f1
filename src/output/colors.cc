#include "output/colors.h"

#include <unistd.h>

#include <array>
#include <cstdlib>

namespace farandole {
namespace {

// Indexed by Color.
constexpr std::array<std::string_view, 5> kColors{"\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m",
                                                  "\x1b[33m"};
// Colors for dark and bright backgrounds: cyan, green, magenta, yellow, bright blue.
constexpr std::array<std::string_view, 5> kRankColors{"\x1b[36m", "\x1b[32m", "\x1b[35m",
                                                      "\x1b[33m", "\x1b[94m"};

std::string enclosed(std::string_view start, std::string_view text) {
  return text.empty() ? std::string() : std::string(start).append(text).append(kResetColor);
}

}  // namespace

bool can_show_colors(int descriptor) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal_type = std::getenv("TERM");
  return ::isatty(descriptor) == 1 && (no_color == nullptr || *no_color == '\0') &&
         (terminal_type == nullptr || std::string_view(terminal_type) != "dumb");
}

std::string in_color(std::string_view text, Color color) {
  return enclosed(kColors[static_cast<std::size_t>(color)], text);
}

std::string red_on_terminal(int descriptor, std::string_view text) {
  return can_show_colors(descriptor) ? in_color(text, Color::kRed) : std::string(text);
}

std::string in_color_of_rank(std::string_view text, int rank) {
  return enclosed(kRankColors[static_cast<std::size_t>(rank) % kRankColors.size()], text);
}

}  // namespace farandole
