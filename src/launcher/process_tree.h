// The processes that descend from this one. With a subreaper at the top, every process of a job is
// one of them, however often it forked or called setsid.
#pragma once

#include <sys/types.h>

#include <map>
#include <vector>

#include "base/clock.h"

namespace farandole {

// Who is whose parent, from one look through /proc. Zombies are not listed.
using ParentOf = std::map<pid_t, pid_t>;
ParentOf read_process_table();

// All processes below `root`, in no particular order.
std::vector<pid_t> descendants_of(pid_t root, const ParentOf& parent_of);

// A signal for everything below this process. Does not wait.
void signal_descendants(int signal);

// Whether something is left below this process, not yet reaped zombies included. Only for a
// subreaper.
bool has_descendants();

// Kills and reaps until nothing is left below this process; false if something is still there at
// the deadline (it hangs in the kernel, or belongs to another user). Blocks. SIGCHLD must be
// blocked in the calling thread and not be ignored.
bool end_descendants(TimePoint deadline);

}  // namespace farandole
