// WorkerNotices: what a launcher tells the workers of an elastic job without being asked. Each
// worker has a socket for it (rendezvous/launcher_notice.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/descriptor.h"
#include "farandole/status.h"
#include "nodes/node_messages.h"
#include "rendezvous/launcher_notice.h"
#include "transport/unix_socket.h"

namespace farandole {

// Only one thread may use it. No function blocks.
class WorkerNotices {
 public:
  // If `output` is not empty, the worker may outlive this launcher, until its next commit. Then it
  // gets these descriptors, which are borrowed: those from which we read its standard output and
  // error. Returns the socket that the worker inherits. A socket of an earlier worker with this
  // number is closed. Errors: kStop.
  Result<Descriptor> add_worker(int local_rank, const std::vector<int>& output);
  // All workers shall end with their next commit. `why` is for the user.
  void send_end(const std::string& why, Duration limit) const;
  // The workers of this epoch shall leave their group, because this member of it is lost.
  void send_loss(const MemberLost& lost) const;

 private:
  void send(const LauncherNotice& notice) const;

  std::map<int, UnixSocket> sockets_;  // by local rank
};

}  // namespace farandole
