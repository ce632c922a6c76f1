// Flags of `horovodrun` that `farandole run` does not have, and what to do here instead.
#pragma once

#include <string_view>

namespace farandole {

// By a word of the command line such as "-np" or "--output-filename=log"; empty if `horovodrun` has
// no such flag either.
std::string_view hint_for_foreign_flag(std::string_view word);

}  // namespace farandole
