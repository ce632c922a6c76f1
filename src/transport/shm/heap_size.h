// How large the shared heap of a rank is when nobody chooses. Only the pages that are touched cost
// memory, so it is as large as the machine's memory, unless a limit says otherwise.
#pragma once

#include <cstddef>

namespace farandole {

// In bytes.
struct HeapLimits {
  std::size_t memory = 0;         // of the machine
  std::size_t address_space = 0;  // of this process
  std::size_t file = 0;           // the largest file that it may make
};

HeapLimits heap_limits();

// Whole huge pages, at least one. Every rank maps the heaps of all `ranks` of the host, and its own
// once more; together they take at most about half of the address space.
std::size_t heap_bytes(const HeapLimits& limits, int ranks);

}  // namespace farandole
