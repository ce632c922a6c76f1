// FusionWatch: sees while the queue is followed, where nothing but batches is fused, whether it
// would pay to learn: whether what comes again and again could come in fewer steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "coordination/moment.h"
#include "coordination/signature.h"

namespace farandole {

class FusionWatch {
 public:
  explicit FusionWatch(std::int64_t fusion_bytes) : fusion_bytes_(fusion_bytes) {}

  // This was in the step that is completed.
  void add(const KnownSignature& known, const Moment& moment);
  // That was all of the step. True once a segment between two quiet points of ours, which has come
  // before, has come in more steps than are needed.
  bool end_step();

 private:
  struct Item {
    std::uint64_t fusion_key;
    std::int64_t bytes;
    std::uint32_t batch;
    std::uint32_t waits;
  };

  void end_segment();
  bool wastes_steps() const;

  std::int64_t fusion_bytes_;
  std::vector<Item> items_;    // of this segment
  std::uint64_t digests_ = 0;  // of this segment: their sum, since the order does not count
  std::size_t steps_ = 0;      // of this segment
  std::uint32_t quiet_points_ = 0;
  bool wasteful_ = false;
  std::unordered_map<std::uint64_t, int> seen_;  // how many times each segment
};

}  // namespace farandole
