#include "script.h"

#include <algorithm>

namespace farandole::sim {

std::optional<int> Script::member_of(int group, int worker) const {
  const auto& all = members(group);
  const auto found = std::lower_bound(all.begin(), all.end(), worker);
  if (found == all.end() || *found != worker) return std::nullopt;
  return static_cast<int>(found - all.begin());
}

}  // namespace farandole::sim
