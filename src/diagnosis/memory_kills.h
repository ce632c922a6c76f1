// Counts the processes that the kernel kills because memory has run out. A worker that it
// has killed looks like one that a user has killed; only these counters hint at the difference.
// They do not say whom it has killed, so only what they have counted shortly before an end is of
// use.
#pragma once

#include <istream>
#include <optional>
#include <string>

#include "diagnosis/failure_box.h"

namespace farandole {

// Where the counter of a memory cgroup is, by what /proc/<pid>/cgroup and /proc/self/mountinfo say.
// Nothing if the process is in none that can be seen from here.
std::optional<std::string> memory_counter_file(std::istream& groups, std::istream& mounts);

// The same for this process, here and now.
std::optional<std::string> own_memory_counter_file();

// For one memory cgroup, by that file, or for none. Its functions read a few files.
class MemoryKillCounter {
 public:
  explicit MemoryKillCounter(std::optional<std::string> counter_file);
  // To be called regularly; from then on kills count as lately only if they came after the look
  // before. Not after this one: a process that has been killed takes some time to end.
  void look();
  // Since the last look but one; before there were two, since the construction.
  MemoryKills lately() const;

 private:
  MemoryKills count() const;

  std::optional<std::string> file_;
  MemoryKills last_look_;
  MemoryKills look_before_;
};

}  // namespace farandole
