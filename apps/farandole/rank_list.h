// Parses lists of ranks as users write them: "0", "0,2-3".
#pragma once

#include <set>
#include <string_view>

#include "farandole/status.h"

namespace farandole {

// Errors: kFixCall if the text is not a list of ranks, or if a rank is not below `workers`, the
// number of workers of the job.
Result<std::set<int>> parse_rank_list(std::string_view text, int workers);

}  // namespace farandole
