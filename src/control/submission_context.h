// SubmissionContext: what the program had done and seen when it submitted a call. It tells the
// coordinator which calls belong together and which must not be fused. Polls and dropped handles
// make `waits` and `quiescent_points` depend on timing. This can only make predictions wrong, never
// names or results. Only `unnamed_number` must be the same on all members.
#pragma once

#include <cstdint>

namespace farandole {

struct SubmissionContext {
  // How many completions the program had seen, in any group: by a wait(), or by a poll() that
  // returned true.
  std::uint32_t waits = 0;
  // The number of quiescent points among the program's submissions to this group, including this
  // submission. A submission is a quiescent point if the program has seen the completion of all its
  // earlier submissions to the group.
  std::uint32_t quiescent_points = 0;
  // The number of the batch on this rank, the same for all calls of the batch; 0 if the call was
  // submitted alone.
  std::uint32_t batch = 0;
  // The number of this call among the unnamed calls of its operation in its group, counted from 1,
  // and from 1 again after all ranks have called join(). 0 if the program gave a name.
  std::uint32_t unnamed_number = 0;

  friend bool operator==(const SubmissionContext&, const SubmissionContext&) = default;
};

}  // namespace farandole
