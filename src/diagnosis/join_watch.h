// Join watch: warns the user about workers that run without calling init(). Such workers train
// independently of each other, which the user of several workers rarely wants.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "diagnosis/job_snapshot.h"

namespace farandole {

// Decides from its arguments and its own state only: no clock, no output.
class JoinWatch {
 public:
  // A program may need some time before it calls init(), such as to load data.
  static constexpr auto kTimeToJoin = std::chrono::minutes(1);

  // A single worker needs no init(), so it never causes a warning.
  JoinWatch(int workers, TimePoint started) {
    if (workers > 1) deadline_ = started + kTimeToJoin;
  }

  // When to call look() next; empty if it is not needed any more.
  std::optional<TimePoint> deadline() const { return deadline_; }
  // Call it at the deadline, once. Returns a line about the ranks that run without having called
  // init(). Empty if other ranks wait in init() for them, because the stall watch reports that.
  std::optional<std::string> look(const std::vector<WatchedWorker>& workers, TimePoint now);

 private:
  std::optional<TimePoint> deadline_;
};

// Call it when all workers have ended with exit code 0. Returns a line about those that never
// called init(). Pure.
std::optional<std::string> never_joined(const std::vector<WatchedWorker>& workers);

}  // namespace farandole
