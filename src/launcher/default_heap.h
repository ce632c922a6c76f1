// The default size of a rank's shared heap in a job that this process starts.
#pragma once

#include <cstdint>

#include "transport/shm/heap_size.h"

namespace farandole {

inline std::int64_t default_heap_bytes(int ranks) {
  return static_cast<std::int64_t>(heap_bytes(heap_limits(), ranks));
}

}  // namespace farandole
