#include "coordination/fusion_watch.h"

#include <utility>

#include "control/limits.h"
#include "coordination/fusion_planner.h"

namespace farandole {

void FusionWatch::add(const InternedSignature& interned, const SubmissionContext& context) {
  if (context.quiescent_points != quiescent_points_) end_superstep();
  quiescent_points_ = context.quiescent_points;
  digest_sum_ += interned.digest;
  // A superstep that fills the history is ignored, because it rarely repeats and planning its
  // buckets takes too long.
  if (!is_history_full())
    calls_.push_back({interned.fusion_key, interned.bytes, context.batch, context.waits});
}

bool FusionWatch::end_step() {
  ++steps_;
  return std::exchange(last_superstep_wastes_steps_, false);
}

void FusionWatch::end_superstep() {
  if (steps_ > 1 && !is_history_full()) {
    if (times_seen_.size() >= kDigestsMax) times_seen_.clear();
    last_superstep_wastes_steps_ = ++times_seen_[digest_sum_] == 2 && wastes_steps();
  }
  calls_.clear();
  digest_sum_ = 0;
  steps_ = 0;
}

bool FusionWatch::is_history_full() const {
  return (calls_.size() + 1) * sizeof(Call) > kHistoryBytesMax;
}

bool FusionWatch::wastes_steps() const {
  std::vector<FusionItem> items;
  for (const auto& [fusion_key, bytes, batch, waits] : calls_)
    items.push_back({fusion_key, bytes, batch, waits});
  return plan_buckets(items, fusion_bytes_).size() < steps_;
}

}  // namespace farandole
