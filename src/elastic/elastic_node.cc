#include "elastic/elastic_node.h"

#include <algorithm>

namespace farandole {

int ElasticNode::rank_of(int slot) const {
  const auto& slots = slots_by_rank();
  const auto found = std::ranges::find(slots, slot);
  return found == slots.end() ? slot : static_cast<int>(found - slots.begin());
}

void ElasticNode::replace_rank_by_slot(WorkerEnd& end) const {
  auto& blamed = end.record.blamed_rank;
  if (!blamed) return;
  const auto& slots = slots_by_rank();
  const bool is_rank = *blamed >= 0 && *blamed < static_cast<int>(slots.size());
  blamed = is_rank ? std::optional(slots[static_cast<std::size_t>(*blamed)]) : std::nullopt;
}

}  // namespace farandole
