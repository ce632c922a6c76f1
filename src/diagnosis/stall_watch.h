// Stall watch: when the user hears of a stall. Once, then at twice, four times … the time, and when
// the call goes on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "diagnosis/stall_verdict.h"

namespace farandole {

// Pure, but for what it remembers.
class StallWatch {
 public:
  struct Report {
    std::vector<std::string> lines;
    std::vector<int> unexplained;  // as in StallVerdict
  };

  // Nothing for a limit of 0: the user wants to hear of no stall.
  static std::optional<StallWatch> if_wanted(Duration limit) {
    return limit > Duration::zero() ? std::optional(StallWatch(limit)) : std::nullopt;
  }
  // `limit`: more than 0.
  explicit StallWatch(Duration limit) : limit_(limit) {}

  // How often tick() wants to be called.
  Duration interval() const { return limit_ / 4; }
  Report tick(const std::vector<WatchedWorker>& workers, TimePoint now);
  // The whole job was stopped by the user, and goes on now.
  void job_continued(TimePoint now) { counts_from_ = now; }

 private:
  enum class Fate { kWaits, kWentOn, kGone };
  struct Reported {
    StallVerdict verdict;
    int times = 1;  // told at so many limits
  };
  static Fate fate_of(const StallVerdict& verdict, const WatchedWorker& worker);

  Duration limit_;
  TimePoint counts_from_{};
  std::optional<Reported> reported_;
};

}  // namespace farandole
