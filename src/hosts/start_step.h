// Chooses the algorithms of groups that have members on several hosts.
#pragma once

#include <memory>

#include "collective/collective_call.h"
#include "collective/group.h"
#include "farandole/status.h"

namespace farandole {

// Returns ok if a group can run the operation. A group on one host can run every operation that
// passes the other checks. For a group on several hosts, returns kFixCall with advice if the notes
// or the windows do not fit into the staging memory. The result is the same on all members.
Status supports(const Group& group, Operation operation);

// Starts a step of a group on several hosts; choose_step() calls it through HostParts::start_step.
// The root and the splits in `call` refer to the members of the whole group. supports() and
// check_reduction() must be ok.
std::unique_ptr<StepBetweenHosts> start_step(Group& group, const StepIdentity& identity,
                                             CollectiveCall&& call);

}  // namespace farandole
