// Replan: collects the reports of the members after they have stopped, and finds the common prefix.
// The common prefix is the sequence of the last decision that all members have entered with the
// same identity.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "control/member_set.h"
#include "control/messages.h"
#include "farandole/status.h"

namespace farandole {

class Replan {
 public:
  // `ranks` are the world ranks of the members, for error texts. `raise` is the reason for the
  // replan.
  Replan(std::vector<int> ranks, Raise raise);

  // Adds the report of these members. Errors: kStop, which says how this report contradicts the
  // report of another member.
  Status add(const MemberSet& from, const Report& report);
  bool any_has_reported(const MemberSet& members) const { return reporters_.intersects(members); }
  bool is_complete() const;

  const Raise& raise() const { return raise_; }
  // The following functions may be called only when the replan is complete.
  std::uint32_t common_prefix() const;
  // Whether any member has entered a decision beyond the common prefix.
  bool rolls_back() const;
  std::vector<std::uint32_t> quiescent_points() const;  // by member
  // How many fragments of the plan member 0 has run.
  std::uint32_t fragments_run() const;

 private:
  std::vector<int> ranks_;
  Raise raise_;
  std::vector<std::pair<MemberSet, Report>> reports_;  // each distinct report, with its senders
  MemberSet reporters_;
};

}  // namespace farandole
