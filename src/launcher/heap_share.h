// Heap share: how large a rank's shared heap is in a job that is started from here, unless the user
// chooses. The doctor tells it beforehand.
#pragma once

#include <cstdint>

#include "transport/shm/heap_size.h"

namespace farandole {

inline std::int64_t default_heap_bytes(int ranks) {
  return static_cast<std::int64_t>(heap_bytes(heap_limits(), ranks));
}

}  // namespace farandole
