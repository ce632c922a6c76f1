// UnixListener: lets processes of one user on one host find each other if `farandole run` has not
// started them. It uses an abstract Unix socket. The name of the socket exists only in the kernel,
// and disappears when the last process closes the socket. The kernel reports the user id of the
// other side, and each side checks this id.
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

// Only one thread at a time may use it.
class UnixListener {
 public:
  // Listens under this name. Errors: kRetry if another process has the name, kFixCall if the name
  // is empty or too long (about 100 bytes), kStop if a system call fails.
  static Result<UnixListener> open(const std::string& name);
  // Connects to the process that listens under this name. Does not block. Errors: kRetry if no
  // process listens at the moment or if too many clients are waiting; kStop if the process belongs
  // to another user.
  static Result<UnixSocket> connect(const std::string& name);

  // Accepts a connection. Errors: kRetry if no client is waiting, or if the client belonged to
  // another user and was disconnected; kStop if the system cannot accept the connection, which then
  // stays in the queue.
  Result<UnixClient> accept() const;

  const Descriptor& descriptor() const { return descriptor_; }  // borrowed, for poll()
  // Releases the name. No further process can connect.
  void close() { descriptor_.reset(); }

 private:
  explicit UnixListener(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

  Descriptor descriptor_;
};

}  // namespace farandole
