// UnixListener: lets processes of one user on one host find each other if our launcher has not
// started them. It uses an abstract Unix socket: its name exists only in the kernel and disappears
// with the last process that has it open. Both sides check the other's user id, which the kernel
// reports.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/descriptor.h"
#include "farandole/status.h"
#include "transport/unix_socket.h"

namespace farandole {

struct UnixClient {
  UnixSocket socket;
  pid_t process;
};

// For one thread at a time.
class UnixListener {
 public:
  // Takes the name. Errors: kRetry if another process has it, kFixCall if it is empty or too long
  // (about 100 bytes), kStop.
  static Result<UnixListener> open(const std::string& name);
  // Connects to the process that has the name. Does not block. Errors: kRetry if no process listens
  // there (not yet, or no longer) or if too many are waiting, kStop if that process belongs to
  // another user.
  static Result<UnixSocket> visit(const std::string& name);

  // Accepts a connection. Errors: kRetry if none is waiting, or if one of another user was closed;
  // kStop if the system cannot accept it (it then stays in the queue).
  Result<UnixClient> accept() const;

  const Descriptor& descriptor() const { return descriptor_; }  // borrowed, to poll
  // Releases the name. No process can connect any more.
  void close() { descriptor_.reset(); }

 private:
  explicit UnixListener(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

  Descriptor descriptor_;
};

}  // namespace farandole
