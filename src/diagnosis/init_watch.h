// Init watch: warns the user about workers that run without calling init(). Such workers run
// independently of each other, which is rarely what the user of several workers wants.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "diagnosis/job_snapshot.h"

namespace farandole {

// The class decides from its arguments and its own state only; it reads no clock and prints
// nothing.
class InitWatch {
 public:
  // How long a worker may run before it calls init(). A worker may need this time to load data, for
  // example.
  static constexpr auto kTimeUntilInitMax = std::chrono::minutes(1);

  // A single worker needs no init(), so it never causes a warning.
  // `first_rank` is the rank of the first worker of this host.
  InitWatch(int size, TimePoint started, int first_rank = 0) : first_rank_(first_rank) {
    if (size > 1) deadline_ = started + kTimeUntilInitMax;
  }

  // The time at which check() must be called; empty if no further call is needed.
  std::optional<TimePoint> deadline() const { return deadline_; }
  // Call check() once, at deadline(). Returns a warning about the ranks that run without having
  // called init(). Returns nothing if there are no such ranks, or if other ranks wait in init(),
  // because the stall watch reports this wait.
  std::optional<std::string> check(const std::vector<WatchedWorker>& workers, TimePoint now);

 private:
  std::optional<TimePoint> deadline_;
  int first_rank_;
};

// Call it when all workers have ended with exit code 0. Returns a warning about the workers that
// never called init(). `workers` are the workers of this host; the first one has the rank
// `first_rank` in a job of `size` ranks. A pure function.
std::optional<std::string> warning_of_missing_init(const std::vector<WatchedWorker>& workers,
                                                   int first_rank, int size);

}  // namespace farandole
