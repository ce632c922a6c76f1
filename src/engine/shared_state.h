// SharedState: what the threads of an engine share. Submissions and the progress lock have one
// guard, since nearly every call changes both.
#pragma once

#include <atomic>
#include <chrono>

#include "base/clock.h"
#include "base/guarded.h"
#include "engine/progress_lock.h"
#include "submission/submissions.h"

namespace farandole {

// How long a wait without a limit lasts.
inline constexpr std::chrono::milliseconds kNoLimit = std::chrono::hours(24);

struct SharedState {
  struct Contents {
    Submissions submissions;
    ProgressLock progress_lock;
    TimePoint published{};  // when calls were finished last
  };

  bool has_work(const Contents& contents) const {
    return contents.submissions.in_flight() > 0 || has_unsent;
  }
  void wake(ProgressLock::Wake whom) {
    if (whom == ProgressLock::Wake::kCallers) guarded.notify_all();
    if (whom == ProgressLock::Wake::kProgress) progress_queue.notify_all();
  }

  Guarded<Contents> guarded;
  WaitQueue progress_queue;  // where the thread "progress" waits for work
  WaitQueue nap_queue;       // where it naps
  // Hints, so that polling needs no guard.
  std::atomic<bool> has_arrivals = false;  // submissions that the holder has not taken in
  std::atomic<bool> called_away = false;   // somebody is ahead of whoever drives
  std::atomic<bool> has_unsent = false;    // messages wait for room, also with nothing in flight
};

}  // namespace farandole
