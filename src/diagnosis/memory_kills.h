// Counts the processes that the kernel kills because memory has run out. A worker that the kernel
// has killed looks like one that a user has killed: both ended by SIGKILL. The kernel's counters
// hint at the difference. They do not name the killed process, so we only use kills that were
// counted shortly before a worker ended.
#pragma once

#include <istream>
#include <optional>
#include <string>

#include "diagnosis/failure_box.h"

namespace farandole {

// Finds the file with the counter of a process's memory cgroup. `groups` is the text of
// /proc/<pid>/cgroup, `mounts` that of /proc/self/mountinfo. Empty if the cgroup is not visible
// from here.
std::optional<std::string> memory_counter_file(std::istream& groups, std::istream& mounts);

// The same for this process.
std::optional<std::string> own_memory_counter_file();

// Counts the kills in one memory cgroup, and on the whole machine. Its functions read a few small
// files.
class MemoryKillCounter {
 public:
  explicit MemoryKillCounter(std::optional<std::string> counter_file);
  // Call it regularly. From then on, kills count as recent only if they came after the previous
  // call of look(). (Not after this call, because a killed process takes some time to end.)
  void look();
  // The kills since the last call of look() but one, or since the construction if there were fewer
  // than two calls.
  MemoryKills recent_kills() const;

 private:
  MemoryKills count() const;

  std::optional<std::string> file_;
  MemoryKills last_look_;
  MemoryKills previous_look_;
};

}  // namespace farandole
