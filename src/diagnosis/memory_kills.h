// Counts the processes that the kernel kills because memory has run out. A worker that the kernel
// has killed ends with SIGKILL, like a worker that a user has killed. The kernel's counters help to
// distinguish these cases. The counters do not name the killed process, so we only use kills that
// were counted shortly before a worker ended.
#pragma once

#include <istream>
#include <optional>
#include <string>

#include "diagnosis/failure_box.h"

namespace farandole {

// Finds the file in which the kernel counts the kills in a process's memory cgroup. `groups` is the
// text of /proc/<pid>/cgroup; `mounts` is the text of /proc/self/mountinfo. Empty if this process
// cannot see the cgroup's folder.
std::optional<std::string> memory_counter_file(std::istream& groups, std::istream& mounts);

// memory_counter_file() for this process.
std::optional<std::string> own_memory_counter_file();

// Counts the kills in one memory cgroup and on the whole machine. Each function reads a few small
// files.
class MemoryKillCounter {
 public:
  explicit MemoryKillCounter(std::optional<std::string> counter_file);
  // Call it regularly. A kill counts as recent until sample() has been called twice after it. One
  // call would not be enough, because a killed process takes some time to end.
  void sample();
  // The kills since the second-last call of sample(), or since the construction if there were fewer
  // than two calls.
  MemoryKills recent_kills() const;

 private:
  MemoryKills count() const;

  std::optional<std::string> file_;
  MemoryKills last_sample_;
  MemoryKills previous_sample_;
};

}  // namespace farandole
