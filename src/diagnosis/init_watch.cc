#include "diagnosis/init_watch.h"

#include <algorithm>

#include "base/format.h"
#include "base/rank_names.h"

namespace farandole {
namespace {

bool is_alive(const WatchedWorker& worker) { return worker.end.empty(); }
bool is_outside(const WatchedWorker& worker) {
  return worker.report.member_state == MemberState::kOutside;
}
bool waits_in_init(const WatchedWorker& worker) {
  return is_alive(worker) && worker.report.member_state == MemberState::kForming;
}

}  // namespace

std::optional<std::string> InitWatch::check(const std::vector<WatchedWorker>& workers,
                                            TimePoint now) {
  if (!deadline_ || now < *deadline_) return std::nullopt;
  deadline_.reset();
  if (std::ranges::any_of(workers, waits_in_init)) return std::nullopt;
  std::vector<int> outside_ranks;
  for (std::size_t rank = 0; rank < workers.size(); ++rank)
    if (is_alive(workers[rank]) && is_outside(workers[rank]))
      outside_ranks.push_back(first_rank_ + static_cast<int>(rank));
  if (outside_ranks.empty()) return std::nullopt;
  const bool is_one = outside_ranks.size() == 1;
  return format_text(
      "{} {} been running for a minute without calling farandole's init(); unless the program "
      "communicates through another library, {} independently of the others",
      ranks_text(outside_ranks), is_one ? "has" : "have", is_one ? "it runs" : "each runs");
}

std::optional<std::string> warning_of_missing_init(const std::vector<WatchedWorker>& workers,
                                                   int first_rank, int size) {
  if (size < 2) return std::nullopt;
  std::vector<int> outside_ranks;
  for (std::size_t rank = 0; rank < workers.size(); ++rank)
    if (is_outside(workers[rank])) outside_ranks.push_back(first_rank + static_cast<int>(rank));
  if (outside_ranks.empty()) return std::nullopt;
  if (outside_ranks.size() == workers.size())
    return format_text(
        "no worker of this {} called farandole's init(): unless the program communicates through "
        "another library, such as torch.distributed with gloo, every worker ran alone; to "
        "train together, the program must call hvd.init()",
        workers.size() == static_cast<std::size_t>(size) ? "job" : "node");
  return format_text(
      "{} ended without calling farandole's init() and ran independently of the others; every rank "
      "of the job must call hvd.init()",
      ranks_text(outside_ranks));
}

}  // namespace farandole
