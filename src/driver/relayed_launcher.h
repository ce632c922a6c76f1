// A process between ssh and a launcher. It exists only if the driver needs more than the output of
// the launcher, for example if a program calls functions on the workers. The launcher runs in a
// child of this process. The launcher inherits descriptors, as if a program on its own host had
// started it. This process carries the bytes of these descriptors to the driver and back.
#pragma once

#include <functional>

#include "driver/launcher_order.h"
#include "launcher/job_options.h"

namespace farandole {

// Calls `launch` in a child process and returns the exit code that it returned, or 128 + the signal
// that killed the child. Our standard input and output are the connection to the driver. If this
// connection ends, the launcher's standard input ends, and the launcher then ends the job. Blocks
// until the child has ended and the driver has got everything. The calling process must be
// single-threaded.
int run_relayed_launcher(const RelayedParts& parts, int workers,
                         const std::function<int(const CallerDescriptors&)>& launch);

}  // namespace farandole
