// The processes that descend from this one. If the agent is a subreaper, these are all processes of
// the job, even if they have forked several times or called setsid.
#pragma once

#include <sys/types.h>

#include <map>
#include <vector>

#include "base/clock.h"

namespace farandole {

// The parent of each process, from one pass through /proc. Zombies are left out.
using ParentOf = std::map<pid_t, pid_t>;
ParentOf read_process_table();

// All processes below `root`, in no particular order.
std::vector<pid_t> descendants_of(pid_t root, const ParentOf& parent_of);

// Sends a signal to all descendants of this process. Does not wait.
void signal_descendants(int signal);

// Whether this process has descendants, including zombies that are not yet reaped. Only for a
// subreaper.
bool has_descendants();

// Kills and reaps all descendants. Returns false if one is left at the deadline (it hangs in the
// kernel, or it belongs to another user). Blocks. The calling thread must have SIGCHLD blocked, and
// the process must not ignore it.
bool end_descendants(TimePoint deadline);

}  // namespace farandole
