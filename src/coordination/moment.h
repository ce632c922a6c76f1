// Moment: what the program has done and seen when it submits. Of it the coordinator learns what
// belongs together, and what must not be fused. A property of the program, never of timing.
#pragma once

#include <cstdint>

namespace farandole {

struct Moment {
  // How many completions the user has seen, in any group, by a wait() or by a poll() that was true.
  std::uint32_t waits = 0;
  // How many times the user had, at a submission to this group, seen everything completed that it
  // had submitted to it before.
  std::uint32_t quiet_points = 0;
  // 0: submitted alone. Else the batch's number on this rank: all of a batch have the same.
  std::uint32_t batch = 0;

  friend bool operator==(const Moment&, const Moment&) = default;
};

}  // namespace farandole
