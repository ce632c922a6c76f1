// Decision: what a group does next. It is a step, the rejection of a submission that cannot run, or
// the release of the joined members. All members enter every decision, even if it moves no data. So
// a member that has completed a decision may leave the group, because all members have then
// received this decision.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "base/signature.h"
#include "farandole/status.h"

namespace farandole {

// The number by which the owner of an Agreement identifies a submission.
using CallId = std::uint64_t;

// The number of a decision. The sequence numbers of completed decisions start at 1, have no gaps,
// and continue with 0 after 2^32 − 1. The generation starts at 1 and grows by 1 with each replan.
struct StepNumber {
  std::uint32_t generation = 1;
  std::uint32_t sequence = 1;

  friend bool operator==(const StepNumber&, const StepNumber&) = default;
};

// The step that runs next. Until all members have entered it with the same identity, it is only
// this member's prediction.
struct Step {
  StepNumber step_number;
  // A digest of everything that the step does: members that enter equal identities enter the same
  // step.
  std::uint64_t identity = 0;
  // This member's submissions, in the order of their data in the step. If there are several, one
  // transfer moves them together.
  std::vector<CallId> call_ids;
  // Set if this member has joined: it has not submitted the call and takes part without data.
  std::optional<Signature> signature_if_joined = std::nullopt;

  friend bool operator==(const Step&, const Step&) = default;
};

// A submission that cannot run. `status` is kFixCall, with the same text on every member that has
// submitted the call.
struct Rejection {
  StepNumber step_number;
  CallId call_id = 0;
  Status status;

  friend bool operator==(const Rejection&, const Rejection&) = default;
};

// All members have joined, so their joins complete. `last_rank` is the same on every member.
struct Release {
  StepNumber step_number;
  CallId call_id = 0;  // the call id of this member's join
  int last_rank = 0;   // the world rank that joined last

  friend bool operator==(const Release&, const Release&) = default;
};

// A joined member enters this no-op when the others enter the rejection of a call that the joined
// member did not make.
struct NoOp {
  StepNumber step_number;

  friend bool operator==(const NoOp&, const NoOp&) = default;
};

using Decision = std::variant<Step, Rejection, Release, NoOp>;

}  // namespace farandole
