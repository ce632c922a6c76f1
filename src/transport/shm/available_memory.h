// Finds how much memory the host can still give to its processes.
#pragma once

#include <cstddef>
#include <istream>

#include "farandole/status.h"

namespace farandole {

// Returns the available memory plus the free swap space, from the text of /proc/meminfo. If the
// text does not state the available memory, returns the largest number.
std::size_t available_memory(std::istream& meminfo);
// Returns the available memory plus the free swap space of this host at the moment.
std::size_t available_memory();

// Returns ok if the host has memory for this many more bytes. Errors: kStop with both numbers.
// Without this check, the kernel may spend minutes on finding the last free pages. During these
// minutes, the process receives no signal.
Status check_memory(std::size_t bytes, std::size_t available_bytes);

}  // namespace farandole
