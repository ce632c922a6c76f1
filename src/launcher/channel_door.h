// The door to the program that has started the job: a socket over which that program gets its ends
// of channels to workers. So the launcher or the driver can open channels at any time, for example
// for a host that is added to an elastic job.
#pragma once

#include "base/descriptor.h"
#include "farandole/status.h"

namespace farandole {

// Makes a channel for the workers of a slot, and returns the workers' end of the channel. The
// program gets the other end in a message that contains the number of the slot (u32). `door` is
// borrowed. Waits for a few seconds if the program takes no messages. Errors: kFixCall if the door
// is not a socket of the type SOCK_SEQPACKET; kStop if the program is gone or takes no messages, or
// for a system limit.
Result<Descriptor> open_channel(int door, int slot);

}  // namespace farandole
