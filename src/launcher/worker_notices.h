// WorkerNotices: messages that a launcher of an elastic job sends to its workers without a request.
// Each worker has a socket for it (rendezvous/launcher_notice.h).
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
  // gets the descriptors in `output`, from which we read its standard output and error. They are
  // borrowed. Returns the socket that the worker inherits. A socket of an earlier worker with this
  // number is closed. Errors: kStop.
  Result<Descriptor> add_worker(int local_rank, const std::vector<int>& output);
  // Asks all workers to end with their next commit. `why` is for the user.
  void send_end(const std::string& why, Duration limit) const;
  // Asks the workers of this epoch to leave their group, because this member of the group is lost.
  void send_loss(const MemberLost& lost) const;

 private:
  void send(const LauncherNotice& notice) const;

  std::map<int, UnixSocket> sockets_;  // by local rank
};

}  // namespace farandole
