// One-shot allreduce for small tensors: each member publishes its whole input (in its flag line if
// it fits there), and then reduces the inputs of all members.
//
// Cost for p members and n bytes: 1 wait, for the entry; each member moves (loads and stores) (p +
// 3) n bytes.
#pragma once

#include <optional>

#include "collective/allreduce.h"
#include "collective/rounds.h"

namespace farandole {

class OneShotAllreduce {
 public:
  static constexpr std::int64_t kBytesMax = kRoundBytes;

  // check_reduction() must be ok, and there may be at most kBytesMax bytes. The memory is borrowed
  // until the step has ended.
  OneShotAllreduce(Group& group, const StepIdentity& identity, const AllreduceOptions& options);

  // Does a bounded amount of work; see Progress.
  Progress advance() { return rounds_.advance(*this); }

 private:
  template <class EntryBarrierType>
  friend class BasicRounds;  // BasicRounds calls the next four functions
  void stage(std::int64_t round);
  void enter(EntryBarrier& entry_barrier) const {
    entry_barrier.enter(declared_count_of(options_));
  }
  std::optional<std::int64_t> on_all_arrived();
  bool consume(std::int64_t round);

  std::int64_t offset() const;  // where our input is in the staging memory
  bool is_inline() const { return options_.bytes() <= static_cast<std::int64_t>(kInlineBytes); }

  Rounds rounds_;
  StepScratch* scratch_;  // owned by the group; until this step ends, only this step uses it
  AllreduceOptions options_;
};

}  // namespace farandole
