// Flags of `horovodrun` that `farandole run` does not have, and what to do here instead.
#pragma once

#include <string_view>

namespace farandole {

// Returns what to do instead of a word such as "-np" or "--output-filename=log". Empty if
// `horovodrun` has no such flag.
std::string_view hint_for_foreign_flag(std::string_view word);

}  // namespace farandole
