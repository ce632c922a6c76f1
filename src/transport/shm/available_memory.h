// How much memory the host can still give to its processes.
#pragma once

#include <cstddef>
#include <istream>

#include "farandole/status.h"

namespace farandole {

// Reads the text of /proc/meminfo: the memory that is available, and the free swap space. Without
// the first, the largest number.
std::size_t available_memory(std::istream& meminfo);
// Of this host, now.
std::size_t available_memory();

// Whether `bytes` more can be touched. Errors: kStop with both numbers. Without this check, the
// kernel may spend minutes on the last pages, during which it delivers no signal.
Status check_memory(std::size_t bytes, std::size_t available);

}  // namespace farandole
