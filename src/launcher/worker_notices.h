// WorkerNotices: messages that a launcher of an elastic job sends to its workers without a request.
// Each worker has a socket for these messages (rendezvous/launcher_notice.h).
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
  // `output_descriptors` are borrowed: we read the worker's standard output and error from them. If
  // they are given, the worker gets copies of these descriptors, and may outlive this launcher
  // until the worker's next commit. Returns the socket that the worker inherits. The socket of an
  // earlier worker with this local rank is closed. Errors: kStop.
  Result<Descriptor> add_worker(int local_rank, const std::vector<int>& output_descriptors);
  // Asks all workers to end with their next commit. `why` is for the user.
  void send_end(const std::string& why, Duration limit) const;
  // Asks the workers of the epoch `lost.epoch` to leave their group, because the member with the
  // rank `lost.rank` is lost.
  void send_loss(const MemberLost& lost) const;

 private:
  void send(const LauncherNotice& notice) const;

  std::map<int, UnixSocket> sockets_;  // by local rank
};

}  // namespace farandole
