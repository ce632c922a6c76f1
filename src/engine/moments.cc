#include "engine/moments.h"

namespace farandole {

Moment Moments::submitted(GroupId group, std::uint32_t batch) {
  Counts& counts = groups_[group];
  if (counts.unseen == 0) ++counts.quiet_points;
  ++counts.unseen;
  return {.waits = waits_, .quiet_points = counts.quiet_points, .batch = batch};
}

void Moments::seen(GroupId group) {
  --groups_[group].unseen;
  ++waits_;
}

}  // namespace farandole
