// ContextTracker: what the program has done and seen, counted at its submissions. From this the
// agreement learns what belongs together (coordination/submission_context.h). What a program sees
// by poll(), and when it drops a handle, depends on time, and may differ between the ranks. That is
// no harm: contexts steer predictions and what shares a transfer, which all ranks agree on, never
// names or results.
// A plain container: the engine guards it.
#pragma once

#include <cstdint>
#include <map>

#include "coordination/submission_context.h"
#include "farandole/engine.h"

namespace farandole {

class ContextTracker {
 public:
  // Must come before anything else of a group. If it throws std::bad_alloc, nothing has changed.
  void know(GroupId group) { groups_.try_emplace(group); }
  // The number of a batch that is about to be submitted.
  std::uint32_t next_batch() { return ++batches_; }
  // A submission to the group, now. `batch`: 0 for one alone.
  SubmissionContext submitted(GroupId group, std::uint32_t batch) {
    Counts& counts = groups_[group];
    if (counts.unobserved++ == 0) ++counts.quiescent_points;
    return {.waits = waits_, .quiescent_points = counts.quiescent_points, .batch = batch};
  }
  // The user has learnt that a submission to the group is complete, for the first time.
  void observed(GroupId group) {
    --groups_[group].unobserved;
    ++waits_;
  }
  // The user will never learn it. So the submission no longer holds back the next quiescent point.
  void dropped(GroupId group) { --groups_[group].unobserved; }
  // The group is gone: nothing is unseen there.
  void forget(GroupId group) { groups_.erase(group); }

 private:
  struct Counts {
    std::uint64_t unobserved = 0;
    std::uint32_t quiescent_points = 0;
  };

  std::map<GroupId, Counts> groups_;
  std::uint32_t waits_ = 0;
  std::uint32_t batches_ = 0;
};

}  // namespace farandole
