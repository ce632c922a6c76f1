// Escape sequences for colored output on a terminal. Pipes and files get plain text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace farandole {

enum class Color : std::uint8_t { kBold, kDim, kRed, kGreen, kYellow };

// Ends all colors.
inline constexpr std::string_view kResetColor = "\x1b[0m";

// Whether the descriptor is a terminal that shows colors, and the user has not set NO_COLOR.
bool can_show_colors(int descriptor);

std::string in_color(std::string_view text, Color color);
// Returns the text in red if this descriptor shows colors, otherwise the unchanged text.
std::string red_on_terminal(int descriptor, std::string_view text);
// Ranks with neighbouring numbers get different colors. No rank gets red, because red means an
// error.
std::string in_color_of_rank(std::string_view text, int rank);

}  // namespace farandole
