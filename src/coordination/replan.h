// Replan: collects the reports of the members after they have stopped, and finds the common prefix:
// the last sequence that all members have entered with the same identity.
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
  // `ranks` are the world ranks of the members, for error texts. `raise` is the reason of the
  // replan.
  Replan(std::vector<int> ranks, Raise raise);

  // Adds a member's report. Errors: kStop, saying how it contradicts the report of another member.
  Status add(int member, const Report& report);
  bool has_reported(int member) const {
    return reports_[static_cast<std::size_t>(member)].has_value();
  }
  bool is_complete() const { return missing_ == 0; }

  const Raise& raise() const { return raise_; }
  // The following functions may be called only when the replan is complete.
  std::uint32_t common_prefix() const;
  // Whether any member has entered a decision beyond the common prefix.
  bool rolls_back() const;
  std::vector<std::uint32_t> quiescent_points() const;  // by member
  // How many fragments of the plan member 0 has run.
  std::uint32_t fragments_run() const { return reports_.front()->fragments_run; }

 private:
  std::vector<int> ranks_;
  Raise raise_;
  std::vector<std::optional<Report>> reports_;
  std::size_t missing_;
};

}  // namespace farandole
