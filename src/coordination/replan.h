// Replan: collects what the members report after they have stopped, and finds how far all have come
// alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "coordination/messages.h"
#include "farandole/status.h"

namespace farandole {

class Replan {
 public:
  // `ranks` are the world ranks of the members, for error texts. `raise` is the reason.
  Replan(std::vector<int> ranks, Raise raise);

  // Errors: kStop, saying how the report contradicts those of other members.
  Status add(int member, const Report& report);
  bool has(int member) const { return reports_[static_cast<std::size_t>(member)].has_value(); }
  bool is_complete() const { return missing_ == 0; }

  const Raise& raise() const { return raise_; }
  // Only when it is complete: the last sequence that all have entered alike; whether any member has
  // entered something beyond it; the quiescent points by member; and how many fragments of the plan
  // member
  // 0 has run.
  std::uint32_t common_prefix() const;
  bool rolls_back() const;
  std::vector<std::uint32_t> quiescent_points() const;
  std::uint32_t fragments_run() const { return reports_.front()->fragments_run; }

 private:
  std::vector<int> ranks_;
  Raise raise_;
  std::vector<std::optional<Report>> reports_;
  std::size_t missing_;
};

}  // namespace farandole
