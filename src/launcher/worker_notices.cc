#include "launcher/worker_notices.h"

#include <chrono>
#include <utility>

#include "base/try.h"

namespace farandole {

Result<Descriptor> WorkerNotices::add_worker(int local_rank,
                                             const std::vector<int>& output_descriptors) {
  FARANDOLE_TRY_ASSIGN(auto ends, UnixSocket::make_pair());
  if (!output_descriptors.empty()) {
    const LauncherNotice notice{.kind = LauncherNotice::Kind::kOutlive};
    FARANDOLE_TRY(ends.first.try_send(notice.encode(), output_descriptors));
  }
  sockets_.insert_or_assign(local_rank, std::move(ends.first));
  return ends.second.take_descriptor();
}

void WorkerNotices::send_end(const std::string& why, Duration limit) const {
  send({.kind = LauncherNotice::Kind::kEnd,
        .limit = std::chrono::duration_cast<std::chrono::milliseconds>(limit),
        .why = why});
}

void WorkerNotices::send_loss(const MemberLost& lost) const {
  send({.kind = LauncherNotice::Kind::kMemberLost,
        .epoch = lost.epoch,
        .rank = static_cast<std::int32_t>(lost.rank)});
}

void WorkerNotices::send(const LauncherNotice& notice) const {
  // Ignore errors: sending such a small message fails only if the worker has ended.
  for (const auto& [local_rank, socket] : sockets_) (void)socket.try_send(notice.encode(), {});
}

}  // namespace farandole
