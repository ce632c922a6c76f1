// SubmissionContext: what the program has done and seen when it submits. Of it the coordinator
// learns what belongs together, and what must not be fused. Only polls and dropped handles make it
// depend on time: that costs predictions, and changes no name and no result.
#pragma once

#include <cstdint>

namespace farandole {

struct SubmissionContext {
  // How many completions the user has seen, in any group: by a wait(), or by a poll() that returned
  // true.
  std::uint32_t waits = 0;
  // How often the user had, when it submitted to this group, seen the completion of all its earlier
  // submissions to it.
  std::uint32_t quiescent_points = 0;
  // 0: submitted alone. Otherwise the number of the batch on this rank, the same for all its calls.
  std::uint32_t batch = 0;

  friend bool operator==(const SubmissionContext&, const SubmissionContext&) = default;
};

}  // namespace farandole
