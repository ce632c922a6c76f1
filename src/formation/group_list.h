// Group list: checks the lists of ranks that a program gives as groups, and shows them in texts.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "farandole/status.h"

namespace farandole {

// How many groups there may be at the same time, the world included. Each has a segment.
inline constexpr std::size_t kGroupsMax = 32;

// Returns the ranks of a group as error texts show them: "[0, 2]".
std::string group_text(const std::vector<int>& ranks);
// Returns a list of groups as error texts show it: "[[0, 1], [1, 2]]".
std::string groups_text(const std::vector<std::vector<int>>& groups);
// Checks a list of ranks. Errors: kFixCall unless the list is ascending and within 0 … size − 1.
Status check_group(const std::vector<int>& ranks, int size);
// Returns the ranks of each group, by GroupId: the world, then `given`. Errors: kFixCall for a list
// that is not ascending, not inside the job, empty or given twice, and for too many groups.
Result<std::vector<std::vector<int>>> all_groups(const std::vector<std::vector<int>>& given,
                                                 int size);

}  // namespace farandole
