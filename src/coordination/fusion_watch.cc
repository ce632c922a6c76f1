#include "coordination/fusion_watch.h"

#include <utility>

#include "coordination/fusion_planner.h"

namespace farandole {
namespace {

// Larger segments are not watched: they hardly repeat and take too long to look at.
constexpr std::size_t kItemsMax = 65536;
constexpr std::size_t kSegmentsMax = 1024;

}  // namespace

void FusionWatch::add(const KnownSignature& known, const Moment& moment) {
  if (moment.quiet_points != quiet_points_) end_segment();
  quiet_points_ = moment.quiet_points;
  digests_ += known.digest;
  if (items_.size() < kItemsMax)
    items_.push_back({known.fusion_key, known.bytes, moment.batch, moment.waits});
}

bool FusionWatch::end_step() {
  ++steps_;
  return std::exchange(wasteful_, false);
}

void FusionWatch::end_segment() {
  if (steps_ > 1 && items_.size() < kItemsMax) {
    if (seen_.size() >= kSegmentsMax) seen_.clear();
    wasteful_ = ++seen_[digests_] == 2 && wastes_steps();
  }
  items_.clear();
  digests_ = 0;
  steps_ = 0;
}

bool FusionWatch::wastes_steps() const {
  std::vector<FusionItem> items;
  for (const auto& [fusion_key, bytes, batch, waits] : items_)
    items.push_back({fusion_key, bytes, batch, {waits}});
  return plan_buckets(items, fusion_bytes_).size() < steps_;
}

}  // namespace farandole
