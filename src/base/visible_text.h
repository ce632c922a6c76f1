// Makes text that comes from workers and the user's program fit for a line on a terminal.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace farandole {

// Escapes control characters (also those that turn the writing direction) and broken UTF-8, as in
// "\x1b". A tab becomes spaces. All functions below expect text that was made visible.
std::string make_visible(std::string_view text);

// How many columns the text takes on a terminal.
int columns_of(std::string_view text);

// The text if it fits into this many columns. Otherwise its beginning and "…".
std::string cut_to(std::string_view text, int columns);

// Breaks the text into lines of at most this many columns (at least 20), at spaces if possible.
// Continuation lines are indented like the text itself, and by `more` columns.
std::vector<std::string> wrap(std::string_view text, int columns, int more = 0);

}  // namespace farandole
