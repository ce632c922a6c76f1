// Text from workers and their programs, made fit to stand in a line of our own on a terminal.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace farandole {

// Control characters, also those that turn the writing direction, and broken UTF-8 become visible
// ("\x1b"); a tab becomes spaces. All functions below want their text like that.
std::string make_visible(std::string_view text);

// How many columns of a terminal it takes.
int columns_of(std::string_view text);

// The text, or its beginning and "…", in at most so many columns.
std::string cut_to(std::string_view text, int columns);

// Lines of at most so many columns (at least 20), broken at spaces where that is possible. What
// goes on in a later line is indented as the text itself is, and by `more` columns.
std::vector<std::string> wrap(std::string_view text, int columns, int more = 0);

}  // namespace farandole
