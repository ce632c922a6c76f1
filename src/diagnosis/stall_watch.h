// Stall watch: decides when to warn the user about a stall. It warns at the limit and again at two,
// four, eight … times the limit. It also says when the stalled call continues.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "diagnosis/stall_verdict.h"

namespace farandole {

// The class decides from its arguments and its own state only; it reads no clock and prints
// nothing.
class StallWatch {
 public:
  struct Report {
    std::vector<std::string> lines;
    std::vector<int> unexplained;  // see StallVerdict::unexplained
  };

  // Returns no watch if the limit is 0, which means no warnings.
  static std::optional<StallWatch> create(Duration limit) {
    return limit > Duration::zero() ? std::optional(StallWatch(limit)) : std::nullopt;
  }
  // `limit` must be more than 0.
  explicit StallWatch(Duration limit) : limit_(limit) {}

  // The time between two calls of tick().
  Duration interval() const { return limit_ / 4; }
  Report tick(const std::vector<WatchedWorker>& workers, TimePoint now);
  // Call it when the job continues after the user had stopped all of it. Earlier waiting time then
  // no longer counts.
  void job_continued(TimePoint now) { counts_from_ = now; }

 private:
  enum class Fate { kWaits, kWentOn, kGone };
  struct Reported {
    StallVerdict verdict;
    int times = 1;  // the last warning came at this multiple of the limit
  };
  static Fate fate_of(const StallVerdict& verdict, const WatchedWorker& worker);

  Duration limit_;
  TimePoint counts_from_{};
  std::optional<Reported> reported_;
};

}  // namespace farandole
