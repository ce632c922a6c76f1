// The default size of a rank's shared heap. Only touched pages use memory, so the heap is as large
// as the machine's memory unless a limit is lower.
#pragma once

#include <cstddef>

namespace farandole {

// The limits of this machine and process, in bytes.
struct HeapLimits {
  std::size_t memory = 0;         // physical memory of the machine
  std::size_t address_space = 0;  // address space limit of this process
  std::size_t file = 0;           // file size limit of this process
};

HeapLimits heap_limits();

// Returns the size in bytes: a multiple of the huge page size, at least one huge page. Every rank
// maps the heaps of all `ranks` ranks of the host, and maps its own heap twice. The size is chosen
// so that all these mappings together take at most about half of the address space.
std::size_t heap_bytes(const HeapLimits& limits, int ranks);

}  // namespace farandole
