// Stall watch: decides when to warn the user about a stall. It warns at the limit and again at two,
// four, eight … times the limit. It also says when the stalled call continues.
#pragma once

#include <cstdint>
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
    std::vector<int> unexplained_ranks;  // see StallVerdict::unexplained_ranks
  };

  // A call is reported when it has waited for `warn_after`. 0 means no warnings.
  explicit StallWatch(Duration warn_after) : warn_after_(warn_after) {}

  // Sets the time after which a waiting call is reported. If the time changes, stalls that were
  // already reported are reported again.
  void set_warn_after(std::int64_t seconds);
  bool is_on() const { return warn_after_ > Duration::zero(); }
  // The time between two calls of tick(), if the watch is on.
  Duration interval() const { return warn_after_ / 4; }
  Report tick(const std::vector<WatchedWorker>& workers, TimePoint now);
  // Call it when the job continues after the user had stopped all of it. The waiting time before
  // this moment then no longer counts.
  void job_continued(TimePoint now) { counts_from_ = now; }

 private:
  enum class StallOutcome { kStillWaits, kWentOn, kOver };
  struct LastWarning {
    StallVerdict verdict;
    int multiple = 1;  // the last warning came at this multiple of warn_after_
  };
  static StallOutcome outcome_of(const StallVerdict& verdict, const WatchedWorker& worker);

  Duration warn_after_;
  TimePoint counts_from_{};
  std::optional<LastWarning> last_warning_;
};

}  // namespace farandole
