// The chooser for groups that have members on several hosts.
#pragma once

#include <memory>

#include "collective/collective_call.h"
#include "collective/group.h"
#include "farandole/status.h"

namespace farandole {

// Whether a group can run the operation. Groups on one host support every operation that passes the
// other checks. A group on many hosts returns kFixCall, with advice, if the notes or the windows do
// not fit into the staging memory. The result is the same on all members.
Status supports(const Group& group, Operation operation);

// Starts the step of such a group; choose() calls it through HostParts::start_step. In `call`, the
// root is a member of the whole group, and there is a split for each member of the whole group.
// supports() and check_reduction() must be ok.
std::unique_ptr<StepBetweenHosts> start_step(Group& group, const StepIdentity& identity,
                                             CollectiveCall&& call);

}  // namespace farandole
