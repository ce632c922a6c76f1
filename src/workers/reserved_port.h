// ReservedPort: a TCP port of this host that belongs to one job.
#pragma once

#include <utility>

#include "base/descriptor.h"
#include "farandole/status.h"

namespace farandole {

// While an object lives, the kernel gives its port to no other program that asks for any free port,
// so jobs that run side by side have different ports. A program that asks for this very port can
// still listen on it, if its socket has SO_REUSEADDR. torch.distributed's store does so on rank 0.
// The object itself does not listen: nobody can connect to the port.
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
