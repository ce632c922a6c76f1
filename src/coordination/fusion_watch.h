// FusionWatch: in queue mode, only batches are fused. This detects whether it would pay to learn:
// whether a sequence that repeats could run in fewer steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/signature.h"
#include "coordination/submission_context.h"

namespace farandole {

class FusionWatch {
 public:
  explicit FusionWatch(std::int64_t fusion_bytes) : fusion_bytes_(fusion_bytes) {}

  // A submission of the step that was completed.
  void add(const InternedSignature& interned, const SubmissionContext& context);
  // All submissions of the step were added. Returns true if a superstep between two of our
  // quiescent points has come before, and took more steps than needed.
  bool end_step();

 private:
  struct Item {
    std::uint64_t fusion_key;
    std::int64_t bytes;
    std::uint32_t batch;
    std::uint32_t waits;
  };

  void end_superstep();
  bool is_full() const;
  bool wastes_steps() const;

  std::int64_t fusion_bytes_;
  std::vector<Item> items_;    // of this superstep
  std::uint64_t digests_ = 0;  // of this superstep: a sum, because the order does not count
  std::size_t steps_ = 0;      // of this superstep
  std::uint32_t quiescent_points_ = 0;
  bool wasteful_ = false;
  std::unordered_map<std::uint64_t, int> seen_;  // how often each superstep has come
};

}  // namespace farandole
