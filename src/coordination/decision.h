// What a group does next: a step, the rejection of a submission that cannot run, or the release of
// joined members. All members enter every decision, also one that moves no data. A member that has
// completed one therefore knows that all have received it, and may leave.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "base/signature.h"
#include "farandole/status.h"

namespace farandole {

// The number by which the owner of an Agreement knows a submission.
using CallId = std::uint64_t;

// The number of an entry. The sequence starts at 1, has no gaps in what a group completes, and
// continues with 0 after 2^32 − 1. The generation starts at 1 and grows by 1 with each replan.
struct StepNumber {
  std::uint32_t generation = 1;
  std::uint32_t sequence = 1;

  friend bool operator==(const StepNumber&, const StepNumber&) = default;
};

// The step that runs next. As long as not all members have entered it with the same identity, it is
// only this member's prediction.
struct Step {
  StepNumber step_number;
  // Digest of all that the step does: members that enter a step with the same identity enter the
  // same step.
  std::uint64_t identity = 0;
  // Our submissions, in the order in which they lie in the step. More than one are fused into one
  // transfer.
  std::vector<CallId> call_ids;
  // Set if this member has joined and so has not submitted the call: it takes part without data.
  std::optional<Signature> joined = std::nullopt;

  friend bool operator==(const Step&, const Step&) = default;
};

// This submission cannot run: kFixCall, with the same text on every member that has submitted it.
struct Rejection {
  StepNumber step_number;
  CallId call_id = 0;
  Status status;

  friend bool operator==(const Rejection&, const Rejection&) = default;
};

// All members have joined, so their joins complete. The same on every member.
struct Release {
  StepNumber step_number;
  CallId call_id = 0;  // the call id of this member's join
  int last_rank = 0;   // the world rank that joined last

  friend bool operator==(const Release&, const Release&) = default;
};

// The other members' submission is rejected. This member has joined and did not submit it: it only
// enters.
struct NoOp {
  StepNumber step_number;

  friend bool operator==(const NoOp&, const NoOp&) = default;
};

using Decision = std::variant<Step, Rejection, Release, NoOp>;

}  // namespace farandole
