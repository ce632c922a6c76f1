// Counts the processes that the kernel kills because memory has run out. A worker that it
// has killed looks like one that a user has killed; only these counters tell the difference.
#pragma once

#include <sys/types.h>

#include <istream>
#include <optional>
#include <string>

#include "diagnosis/failure_box.h"

namespace farandole {

// Where the counter of a memory cgroup is, by what /proc/<pid>/cgroup and /proc/self/mountinfo say.
// Nothing if the process is in none that can be seen from here.
std::optional<std::string> memory_counter_file(std::istream& groups, std::istream& mounts);

// Counts from its construction on. Its functions read a few files.
class MemoryKillCounter {
 public:
  explicit MemoryKillCounter(pid_t worker);
  MemoryKills since_start() const;

 private:
  MemoryKills count() const;

  std::optional<std::string> file_;
  MemoryKills before_;
};

}  // namespace farandole
