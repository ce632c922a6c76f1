#include "transport/shm/heap_size.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "transport/shm/segment.h"

namespace farandole {
namespace {

// The address space of a user program on 64-bit machines with four-level page tables.
constexpr std::size_t kAddressSpaceBytes = std::size_t{1} << 47;

std::size_t soft_limit(int resource, std::size_t bytes_max) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return bytes_max;
  return std::min<std::size_t>(limit.rlim_cur, bytes_max);
}

}  // namespace

HeapLimits heap_limits() {
  const auto pages = static_cast<std::size_t>(std::max(::sysconf(_SC_PHYS_PAGES), 1L));
  return {.memory = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)),
          .address_space = soft_limit(RLIMIT_AS, kAddressSpaceBytes),
          .file = soft_limit(RLIMIT_FSIZE, kAddressSpaceBytes)};
}

std::size_t heap_bytes(const HeapLimits& limits, int ranks) {
  const std::size_t address_space_share =
      limits.address_space / 4 / static_cast<std::size_t>(std::max(ranks, 1));
  const std::size_t memory = (limits.memory + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const std::size_t bytes = std::min({memory, address_space_share, limits.file});
  return std::max(bytes / kHugePageBytes, std::size_t{1}) * kHugePageBytes;
}

}  // namespace farandole
