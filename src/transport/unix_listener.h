// UnixListener: how processes of one user on one host that have no ancestor of ours find each
// other: by an abstract Unix socket, a name that the kernel alone knows and forgets with its last
// holder. Both sides look at whose process the other one is, as the kernel attests it.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/descriptor.h"
#include "farandole/status.h"
#include "transport/unix_socket.h"

namespace farandole {

struct UnixVisitor {
  UnixSocket socket;
  pid_t process;
};

// One thread at a time.
class UnixListener {
 public:
  // Takes the name. Errors: kRetry when another process has it, kFixCall for one that is empty or
  // too long (about 100 bytes), kStop.
  static Result<UnixListener> open(const std::string& name);
  // To the process that has the name. Does not block. Errors: kRetry when nobody listens there
  // (yet, or any more) or too many are waiting, kStop when that process is another user's.
  static Result<UnixSocket> visit(const std::string& name);

  // Errors: kRetry when nobody is waiting or a visitor of another user has been sent away, kStop
  // when nobody can be taken in: who is waiting goes on waiting.
  Result<UnixVisitor> accept() const;

  const Descriptor& descriptor() const { return descriptor_; }  // borrowed, to poll
  // Gives the name free; nobody can come any more.
  void close() { descriptor_.reset(); }

 private:
  explicit UnixListener(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

  Descriptor descriptor_;
};

}  // namespace farandole
