// One-shot allreduce for small tensors: each member shows all that it brings, inside its flag line
// if it fits there, and reduces everything itself.
//
// Cost for p members and n bytes: 1 wait, the entry; moved per member (loads and stores) (p + 3) n.
#pragma once

#include <optional>

#include "collective/allreduce.h"
#include "collective/rounds.h"

namespace farandole {

class OneShotAllreduce {
 public:
  static constexpr std::int64_t kBytesMax = kRoundBytes;

  // check_reduction() must hold; at most kBytesMax. The memory is borrowed until the step is over.
  OneShotAllreduce(const Group& group, const StepIdentity& identity,
                   const AllreduceOptions& options);

  // Does a bounded amount of work; see Progress.
  Progress advance() { return rounds_.advance(*this); }

 private:
  template <class Way>
  friend class BasicRounds;  // which calls these four
  void stage(std::int64_t round);
  void enter(Entrance& entrance) const { entrance.enter(extent_of(options_)); }
  std::optional<std::int64_t> meet();
  bool take(std::int64_t round);

  std::int64_t offset() const;  // in the staging memory
  bool is_inside() const { return options_.bytes() <= static_cast<std::int64_t>(kInlineBytes); }

  Rounds rounds_;
  AllreduceOptions options_;
};

}  // namespace farandole
