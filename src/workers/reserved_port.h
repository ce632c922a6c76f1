// ReservedPort: a TCP port of this host that belongs to one job.
#pragma once

#include <utility>

#include "base/descriptor.h"
#include "farandole/status.h"

namespace farandole {

// While an object lives, the kernel does not give its port to programs that ask for any free port.
// So jobs that run at the same time have different ports. A program that asks for exactly this port
// can still listen on it, if its socket has SO_REUSEADDR. torch.distributed's store on rank 0 is
// such a program. The object itself does not listen, so a connection to the port fails.
class ReservedPort {
 public:
  // Errors: kStop with the reason of the system.
  static Result<ReservedPort> create();

  int number() const { return number_; }

 private:
  ReservedPort(Descriptor socket, int number) : socket_(std::move(socket)), number_(number) {}

  Descriptor socket_;
  int number_;
};

}  // namespace farandole
