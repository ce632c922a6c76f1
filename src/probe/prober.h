// The probe: the process that `farandole doctor -H` starts on each host. It reports what the host
// has, listens as a rank of a job would, and tries the addresses of the other probes when it gets
// the order.
#pragma once

#include <string>

namespace farandole {

// Talks to `farandole doctor` over the standard streams. `version` is that of this program. Returns
// the exit code when the standard input ends, or when no order has arrived for some minutes.
// Blocks. The calling process must be single-threaded.
int run_probe(const std::string& version);

}  // namespace farandole
