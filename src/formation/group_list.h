// Group list: checks the lists of ranks that a program gives as groups, and shows them in texts.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "farandole/status.h"

namespace farandole {

// The largest number of groups at the same time, including the world. Each group has a segment.
inline constexpr std::size_t kGroupsMax = 32;

// Returns the ranks of a group as error texts show them: "[0, 2]".
std::string group_text(const std::vector<int>& ranks);
// Returns a list of groups as error texts show it: "[[0, 1], [1, 2]]".
std::string groups_text(const std::vector<std::vector<int>>& groups);
// Checks a list of ranks. Errors: kFixCall if the list is empty or not ascending, or has a rank
// outside 0 … size − 1.
Status check_group(const std::vector<int>& ranks, int size);
// The size of an elastic job changes. So a group may contain ranks that do not exist at the moment,
// and it may have the same ranks as the world.
enum class JobSize { kFixed, kChanges };
// Returns the ranks of each group, by GroupId: the world, then `given`. If some ranks of a group do
// not exist, its list is empty, so that each group keeps its number. Errors: kFixCall for too many
// groups, and for a list that is empty, not ascending, not inside the job or given twice.
Result<std::vector<std::vector<int>>> all_groups(const std::vector<std::vector<int>>& given,
                                                 int size, JobSize job_size = JobSize::kFixed);

}  // namespace farandole
