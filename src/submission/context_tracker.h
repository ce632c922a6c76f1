// ContextTracker: counts the submissions of the program and the completions that the program has
// seen, and makes a SubmissionContext for each submission. The agreement uses the contexts to
// predict which calls belong together. The contexts depend on results of poll() and on the times at
// which handles are dropped, so they may differ between ranks. This is harmless, because contexts
// never influence names or results. They influence only predictions and fusion, and the ranks agree
// on both. ContextTracker is not thread-safe: the engine guards it with a lock.
#pragma once

#include <cstdint>
#include <map>

#include "control/submission_context.h"
#include "farandole/engine.h"

namespace farandole {

class ContextTracker {
 public:
  // Must be called before the other functions for this group. If it throws std::bad_alloc, nothing
  // has changed.
  void add_group(GroupId group) { groups_.try_emplace(group); }
  // Returns a number for the batch that is submitted next.
  std::uint32_t next_batch() { return ++batches_; }
  // Counts a submission to the group and returns its context. `batch` is 0 if the submission is in
  // no batch.
  SubmissionContext count_submitted(GroupId group, std::uint32_t batch) {
    Counts& counts = groups_[group];
    if (counts.unobserved++ == 0) ++counts.quiescent_points;
    return {.waits = waits_, .quiescent_points = counts.quiescent_points, .batch = batch};
  }
  // Call it when the program sees for the first time that a submission to the group is complete.
  void count_observed(GroupId group) {
    --groups_[group].unobserved;
    ++waits_;
  }
  // Call it when the program drops a submission without having seen its completion. The next
  // quiescent point does not depend on that submission any more.
  void count_dropped(GroupId group) { --groups_[group].unobserved; }
  void remove_group(GroupId group) { groups_.erase(group); }

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
