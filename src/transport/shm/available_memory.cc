#include "transport/shm/available_memory.h"

#include <fstream>
#include <limits>
#include <string>

#include "base/format.h"

namespace farandole {

std::size_t available_memory(std::istream& meminfo) {
  for (std::string word; meminfo >> word;) {
    if (word != "MemAvailable:") continue;
    std::size_t kibibytes = 0;
    if (meminfo >> kibibytes) return kibibytes << 10;
  }
  return std::numeric_limits<std::size_t>::max();
}

std::size_t available_memory() {
  std::ifstream meminfo("/proc/meminfo");
  return available_memory(meminfo);
}

Status check_memory(std::size_t bytes, std::size_t available) {
  if (bytes <= available) return {};
  return Status::stop(
      format_text("{} bytes cannot be allocated: this host has {} bytes of free memory (use "
                  "smaller tensors, or fewer workers on this host)",
                  bytes, available));
}

}  // namespace farandole
