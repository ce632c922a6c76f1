// FusionWatch: detects that the group should learn a plan. It is used in queue mode, in which only
// batches are fused. A superstep here consists of the steps between two quiescent points of this
// member. A plan helps if a superstep repeats and could run in fewer steps with more fusion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/signature.h"
#include "control/submission_context.h"

namespace farandole {

class FusionWatch {
 public:
  explicit FusionWatch(std::int64_t fusion_bytes) : fusion_bytes_(fusion_bytes) {}

  // Adds a submission of the step that has completed.
  void add(const InternedSignature& interned, const SubmissionContext& context);
  // Call it when all submissions of the step were added. Returns true if the superstep that ended
  // just before this step has occurred for the second time and takes more steps than it needs.
  bool end_step();

 private:
  struct Call {
    std::uint64_t fusion_key;
    std::int64_t bytes;
    std::uint32_t batch;
    std::uint32_t waits;
  };

  void end_superstep();
  bool is_history_full() const;
  bool wastes_steps() const;

  std::int64_t fusion_bytes_;
  std::vector<Call> calls_;       // the calls of this superstep
  std::uint64_t digest_sum_ = 0;  // a sum over calls_, which does not depend on their order
  std::size_t steps_ = 0;         // the number of steps of this superstep
  std::uint32_t quiescent_points_ = 0;
  // Whether the last superstep repeats and takes too many steps.
  bool last_superstep_wastes_steps_ = false;
  // how often each superstep has occurred, by digest_sum_
  std::unordered_map<std::uint64_t, int> times_seen_;
};

}  // namespace farandole
