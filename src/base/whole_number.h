// Parses whole numbers on the command line.
#pragma once

#include <string>
#include <string_view>

#include "farandole/status.h"

namespace farandole {

// Errors: kFixCall with the flag, the text and the limits.
Result<int> parse_whole_number(std::string_view flag, const std::string& text, int min, int max);

}  // namespace farandole
