#include "elastic/elastic_node.h"

#include <algorithm>

namespace farandole {

int ElasticNode::rank_of(int slot) const {
  const auto& slots = slots_by_rank();
  const auto position = std::ranges::find(slots, slot);
  return position == slots.end() ? slot : static_cast<int>(position - slots.begin());
}

void ElasticNode::replace_rank_by_slot(WorkerEnd& end) const {
  auto& blamed_rank_or_slot = end.record.blamed_rank;
  if (!blamed_rank_or_slot) return;
  const auto& slots = slots_by_rank();
  const bool is_rank =
      *blamed_rank_or_slot >= 0 && *blamed_rank_or_slot < static_cast<int>(slots.size());
  blamed_rank_or_slot =
      is_rank ? std::optional(slots[static_cast<std::size_t>(*blamed_rank_or_slot)]) : std::nullopt;
}

}  // namespace farandole
