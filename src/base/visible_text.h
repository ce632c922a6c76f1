// Prepares text from workers and the user's program for a line on a terminal.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace farandole {

// Escapes control characters, characters that change the writing direction, and invalid UTF-8, for
// example as "\x1b". A tab becomes spaces. All functions below expect text that escape_controls()
// has returned.
std::string escape_controls(std::string_view text);

// The width of the text on a terminal, in columns.
int columns_of(std::string_view text);

// Returns the text if it fits into this many columns, otherwise its beginning and "…".
std::string cut_to(std::string_view text, int columns);

// Breaks the text into lines of at most this many columns (at least 20), at spaces if possible.
// Continuation lines have the indentation of the text plus `extra_indent` columns.
std::vector<std::string> wrap(std::string_view text, int columns, int extra_indent = 0);

}  // namespace farandole
