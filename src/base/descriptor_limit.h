// Checks that the process can open as many descriptors as a job needs. The check runs before the
// first of these descriptors is opened, so that a rank never fails after it has opened some of
// them. Also writes the advice for the errors of open() and similar calls.
#pragma once

#include <string>
#include <string_view>

#include "farandole/status.h"

namespace farandole {

// Returns ok if `needed` more descriptors can be opened now; opens none. Otherwise returns kStop
// with the needed, open and allowed numbers. `who` begins the text, such as "rank 3".
Status check_descriptors(std::string_view who, int needed);

// The advice to print after a system call failed for lack of a free descriptor: how many are open,
// the limit, and how to raise it.
std::string descriptor_advice();

}  // namespace farandole
