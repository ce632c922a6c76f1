#include "transport/shm/available_memory.h"

#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>

#include "base/format.h"

namespace farandole {

std::size_t available_memory(std::istream& meminfo) {
  std::optional<std::size_t> memory;
  std::size_t swap = 0;
  std::size_t kibibytes = 0;
  for (std::string line; std::getline(meminfo, line);) {
    std::istringstream words(line);
    std::string name;
    if (!(words >> name >> kibibytes)) continue;
    if (name == "MemAvailable:") memory = kibibytes << 10;
    if (name == "SwapFree:") swap = kibibytes << 10;
  }
  return memory ? *memory + swap : std::numeric_limits<std::size_t>::max();
}

std::size_t available_memory() {
  std::ifstream meminfo("/proc/meminfo");
  return available_memory(meminfo);
}

Status check_memory(std::size_t bytes, std::size_t available_bytes) {
  if (bytes <= available_bytes) return {};
  return Status::stop(
      format_text("{} bytes cannot be allocated: this host has {} bytes of free memory (use "
                  "smaller tensors, or fewer workers on this host)",
                  bytes, available_bytes));
}

}  // namespace farandole
