// Formats lists of ranks for people.
#pragma once

#include <string>
#include <vector>

namespace farandole {

// "rank 3", "ranks 0-2, 5". The ranks must be in ascending order.
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace farandole
