// Functions with which a launcher or a driver sets up its signals and its limit of open files.
#pragma once

#include <signal.h>

#include "workers/worker_process.h"

namespace farandole {

// Whether this process ignores a signal. For example, a process under nohup ignores SIGHUP.
bool is_ignored(int signal);

// The signals that a signalfd delivers to us: those that we pass on, and SIGCHLD. Signals that this
// process ignored when it started (as under nohup) stay ignored.
sigset_t handled_signals();

// Blocks the signals that the signalfd delivers. Also blocks signals that would stop or end us when
// we write, or when we create shared memory under `ulimit -f` (SIGXFSZ).
void block_signals(const sigset_t& handled);

// Stops this process as SIGTSTP does by default, until a SIGCONT. SIGTSTP must be blocked. If no
// shell could continue the process (its process group is orphaned), the kernel does not stop it.
// Whether the kernel has stopped this process or not, the function then sends it a SIGCONT, which
// continues the workers.
void stop_after_ctrl_z();

// Raises the limit of open files for a job of many workers. Returns the limit and the signal mask
// that this process had before the call.
OriginalProcessState save_and_adjust_state();

}  // namespace farandole
