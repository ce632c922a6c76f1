// A list of ranks as users write it: "0", "0,2-3".
#pragma once

#include <set>
#include <string_view>

#include "farandole/status.h"

namespace farandole {

// Errors: kFixCall if the text is not a list, or if it contains a rank that a job of `workers` does
// not have.
Result<std::set<int>> parse_rank_list(std::string_view text, int workers);

}  // namespace farandole
