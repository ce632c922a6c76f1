// Entrance: the way into a step that all algorithms share. It enters on the flag board, waits until
// every member has entered, and only then lets the algorithm see the others' staging memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collective/group.h"

namespace farandole {

// One per step; one thread at a time (the baton's holder).
class Entrance {
 public:
  // `group` is borrowed and outlives this.
  Entrance(const Group& group, const StepIdentity& identity);

  const Group& group() const { return *group_; }
  FlagBoard& board() const { return *group_->board; }

  // The slot of this step is free: our staging part may be written and enter() called.
  bool may_enter() const;
  // Publishes our entry; what is staged by now counts as staged with phase 0.
  void enter(std::int64_t extent);
  bool entered() const { return entered_; }

  // kPending until every member has entered; then kMismatch if an entry is for another step or
  // makes no sense, else kDone, and extent() and staging() may be used.
  Progress meet();

  // What a member said when it entered.
  std::int64_t extent(int member) const;
  // All members said the same extent.
  bool extents_equal() const;

  // Our part of the staging memory for this step, kStagingBytesPerSlot.
  std::byte* own_staging() const { return own_staging_; }
  const std::byte* staging(int member) const;

 private:
  const Group* group_;
  StepIdentity identity_;
  bool entered_ = false;
  std::byte* own_staging_;
  std::vector<const std::byte*> stagings_;  // of each member; filled by meet()
  std::vector<std::int64_t> extents_;
};

}  // namespace farandole
