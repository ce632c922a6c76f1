// Descriptor limit: is there room for what a job needs? Asked before the first one is opened, so
// that nobody gets stuck half-way; and what to say when one could not be opened.
#pragma once

#include <string>
#include <string_view>

#include "farandole/status.h"

namespace farandole {

// Ok if `needed` more descriptors can be opened now. Opens none. Errors: kStop with all numbers.
// `who` begins the text: "rank 3".
Status check_descriptors(std::string_view who, int needed);

// After a call that failed for want of a descriptor: the numbers, and what to raise.
std::string descriptor_advice();

}  // namespace farandole
