// Barrier: a step that moves no data. It is done when every member has entered.
#pragma once

#include "collective/entry_barrier.h"

namespace farandole {

class Barrier {
 public:
  Barrier(const Group& group, const StepIdentity& identity) : entry_barrier_(group, identity) {}

  // Does a bounded amount of work; see Progress.
  Progress advance();

 private:
  EntryBarrier entry_barrier_;
};

}  // namespace farandole
