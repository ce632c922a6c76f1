// EndNotices: tells the workers of an elastic job to end with their next commit. Each worker has a
// socket for it (rendezvous/launcher_notice.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/descriptor.h"
#include "farandole/status.h"
#include "transport/unix_socket.h"

namespace farandole {

// Only one thread may use it. No function blocks.
class EndNotices {
 public:
  // If `output` is not empty, the worker may outlive this launcher, until its next commit. Then it
  // gets these descriptors, which are borrowed: those from which we read its standard output and
  // error. Returns the socket that the worker inherits. A socket of an earlier worker with this
  // number is closed. Errors: kStop.
  Result<Descriptor> add_worker(int local_rank, const std::vector<int>& output);
  // Tells all workers. `why` is for the user.
  void send(const std::string& why, Duration limit) const;

 private:
  std::map<int, UnixSocket> sockets_;  // by local rank
};

}  // namespace farandole
