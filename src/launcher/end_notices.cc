#include "launcher/end_notices.h"

#include <chrono>
#include <utility>

#include "base/try.h"
#include "rendezvous/launcher_notice.h"

namespace farandole {

Result<Descriptor> EndNotices::add_worker(int local_rank, const std::vector<int>& output) {
  FARANDOLE_TRY_ASSIGN(auto ends, UnixSocket::make_pair());
  if (!output.empty()) {
    const LauncherNotice notice{.kind = LauncherNotice::Kind::kOutlive};
    FARANDOLE_TRY(ends.first.try_send(notice.encode(), output));
  }
  sockets_.insert_or_assign(local_rank, std::move(ends.first));
  return ends.second.take_descriptor();
}

void EndNotices::send(const std::string& why, Duration limit) const {
  const LauncherNotice notice{.kind = LauncherNotice::Kind::kEnd,
                              .limit = std::chrono::duration_cast<std::chrono::milliseconds>(limit),
                              .why = why};
  // A worker that has ended gets no notice, and nothing else is in the way of so small a message.
  for (const auto& [local_rank, socket] : sockets_) (void)socket.try_send(notice.encode(), {});
}

}  // namespace farandole
