// Lists of ranks as people read them.
#pragma once

#include <string>
#include <vector>

namespace farandole {

// "rank 3", "ranks 0-2, 5" of ascending ranks.
std::string name_ranks(const std::vector<int>& ranks);

}  // namespace farandole
