// Process tree: the processes that descend from this one. The agent is a subreaper, so all
// processes of the job are its descendants, even after several forks or setsid.
#pragma once

#include <sys/types.h>

#include <map>
#include <vector>

#include "base/clock.h"

namespace farandole {

// The parent of each process, from one pass through /proc. Zombies are omitted.
using ParentByPid = std::map<pid_t, pid_t>;
ParentByPid read_process_table();

// All processes below `root`, in no particular order.
std::vector<pid_t> descendants_of(pid_t root, const ParentByPid& parent_by_pid);

// Sends a signal to all descendants of this process. Does not wait.
void signal_descendants(int signal);

// Whether this process, a subreaper, has descendants, including zombies that are not yet reaped.
bool has_descendants();

// Reaps the children that have ended.
void reap_children();

// Kills and reaps all descendants. Returns false if a descendant is left at the deadline, because
// it hangs in the kernel or belongs to another user. Blocks. The calling thread must have SIGCHLD
// blocked, and the process must not ignore it.
bool end_descendants(TimePoint deadline);

}  // namespace farandole
