// FusionPlanner: which submissions share a step.
#pragma once

#include "coordination/signature.h"

namespace farandole {

// Whether one transfer can carry both, one behind the other.
bool may_share_a_step(const Signature& a, const Signature& b);

}  // namespace farandole
