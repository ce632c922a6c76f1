// SubmissionContext: what the program had done and seen when it submitted a call. From it, the
// coordinator learns which calls belong together and which must not be fused. Polls and dropped
// handles make these numbers depend on time. Then predictions may be wrong, but names and results
// never are.
#pragma once

#include <cstdint>

namespace farandole {

struct SubmissionContext {
  // How many completions the program had seen, in any group: by a wait(), or by a poll() that
  // returned true.
  std::uint32_t waits = 0;
  // How many of the program's submissions to this group, this one included, were quiescent points.
  // A submission is a quiescent point if the program has seen all its earlier submissions to the
  // group completed.
  std::uint32_t quiescent_points = 0;
  // The number of the batch on this rank, the same for all its calls; 0 if submitted alone.
  std::uint32_t batch = 0;
  // The number of this call among the calls of its operation without a name, counted from 1 in its
  // group and, after a join of all ranks, from 1 again. 0 if the program has given the call a name.
  // Only this number must be the same on all members.
  std::uint32_t unnamed_number = 0;

  friend bool operator==(const SubmissionContext&, const SubmissionContext&) = default;
};

}  // namespace farandole
