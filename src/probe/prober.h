// The probe: the process that `farandole doctor -H` starts on each host. It reports what the host
// has, listens as a rank of a job would, and tries the addresses of the other probes when it gets a
// ConnectOrder.
#pragma once

#include <string>

namespace farandole {

// Runs the probe, which talks to `farandole doctor` over the standard streams. `version` is the
// version of this program. Blocks until the standard input ends, and returns the exit code. The
// calling process must be single-threaded.
int run_probe(const std::string& version);

}  // namespace farandole
