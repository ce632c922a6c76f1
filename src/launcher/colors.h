// Colors for people at a terminal. Nobody else gets any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace farandole {

enum class Color : std::uint8_t { kBold, kDim, kRed, kGreen, kYellow };

// Whether the descriptor is a terminal that shows colors, and the user has not set NO_COLOR.
bool wants_colors(int descriptor);

std::string in_color(std::string_view text, Color color);
// Red, if that is to be written to this descriptor, and it wants colors.
std::string error_for(int descriptor, std::string_view text);
// Neighbours differ, and none looks like an error.
std::string in_color_of_rank(std::string_view text, int rank);

}  // namespace farandole
