#include "formation/group_list.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "base/format.h"
#include "base/try.h"

namespace farandole {

std::string group_text(const std::vector<int>& ranks) {
  return format_text("[{}]", join_text(ranks, ", "));
}

std::string groups_text(const std::vector<std::vector<int>>& groups) {
  std::vector<std::string> texts;
  for (const auto& ranks : groups) texts.push_back(group_text(ranks));
  return format_text("[{}]", join_text(texts, ", "));
}

Status check_group(const std::vector<int>& ranks, int size) {
  const bool is_ascending =
      std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  if (!ranks.empty() && is_ascending && (ranks.front() < 0 || ranks.back() >= size))
    return Status::fix_call(
        format_text("the group {} names rank {}, which is not one of this job (0 to {})",
                    group_text(ranks), ranks.front() < 0 ? ranks.front() : ranks.back(), size - 1));
  if (ranks.empty() || !is_ascending)
    return Status::fix_call(format_text(
        "the group {} is not an ascending list of ranks of this job (0 to {}); name each member "
        "once, the smallest first",
        group_text(ranks), size - 1));
  return {};
}

Result<std::vector<std::vector<int>>> all_groups(const std::vector<std::vector<int>>& given,
                                                 int size, JobSize job_size) {
  std::vector<std::vector<int>> groups(1, std::vector<int>(static_cast<std::size_t>(size)));
  std::iota(groups[0].begin(), groups[0].end(), 0);
  const bool is_fixed = job_size == JobSize::kFixed;
  for (auto ranks = given.begin(); ranks != given.end(); ++ranks) {
    FARANDOLE_TRY(check_group(*ranks, is_fixed ? size : std::numeric_limits<int>::max()));
    if (std::find(given.begin(), ranks, *ranks) != ranks || (is_fixed && *ranks == groups[0]))
      return Status::fix_call(format_text("the group {} is given twice{}; name each group once",
                                          group_text(*ranks),
                                          is_fixed ? " (the world counts as given)" : ""));
    groups.push_back(ranks->back() < size ? *ranks : std::vector<int>());
  }
  if (groups.size() > kGroupsMax)
    return Status::fix_call(format_text("{} groups are too many; at most {} are possible",
                                        given.size(), kGroupsMax - 1));
  return groups;
}

}  // namespace farandole
