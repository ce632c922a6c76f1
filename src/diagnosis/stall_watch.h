// Stall watch: decides when to tell the user about a stall. It tells once at the limit, again at
// twice, four times … the limit, and once more if the call continues.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "diagnosis/stall_verdict.h"

namespace farandole {

// Decides from its arguments and its own state only: no clock, no output.
class StallWatch {
 public:
  struct Report {
    std::vector<std::string> lines;
    std::vector<int> unexplained;  // see StallVerdict::unexplained
  };

  // Empty for a limit of 0, which means no warnings.
  static std::optional<StallWatch> create(Duration limit) {
    return limit > Duration::zero() ? std::optional(StallWatch(limit)) : std::nullopt;
  }
  // `limit` is more than 0.
  explicit StallWatch(Duration limit) : limit_(limit) {}

  // How often to call tick().
  Duration interval() const { return limit_ / 4; }
  Report tick(const std::vector<WatchedWorker>& workers, TimePoint now);
  // Call it when the job continues after the user had stopped all of it: waiting times start again.
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
