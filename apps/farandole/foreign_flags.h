// The flags of `horovodrun` that `farandole run` does not have, and what users can do instead.
#pragma once

#include <string_view>

namespace farandole {

// Returns the advice for a word such as "-np" or "--output-filename=log". Returns an empty string
// if the table in foreign_flags.cc has no such flag.
std::string_view hint_for_foreign_flag(std::string_view word);

}  // namespace farandole
