// Join watch: tells the user of workers that run without having called init(). Each of them works
// for itself, which is rarely what the user of several workers wants.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "diagnosis/job_snapshot.h"

namespace farandole {

// Pure, but for what it remembers.
class JoinWatch {
 public:
  // A program may take its time before it calls init(), for loading data say.
  static constexpr auto kTimeToJoin = std::chrono::minutes(1);

  // A single worker needs no init(): nothing is said of it.
  JoinWatch(int workers, TimePoint started) {
    if (workers > 1) deadline_ = started + kTimeToJoin;
  }

  // When look() wants to be called.
  std::optional<TimePoint> deadline() const { return deadline_; }
  // At the deadline, and only then: a line about the ranks that run without having called init().
  // Nothing if others wait there for them: the stall watch tells that.
  std::optional<std::string> look(const std::vector<WatchedWorker>& workers, TimePoint now);

 private:
  std::optional<TimePoint> deadline_;
};

// Once all workers have ended well: a line about those that never called init(). Pure.
std::optional<std::string> never_joined(const std::vector<WatchedWorker>& workers);

}  // namespace farandole
