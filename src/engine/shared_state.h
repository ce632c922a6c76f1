// SharedState: the state that the threads of an engine share. One mutex guards both the submissions
// and the progress lock, because nearly every call changes both.
#pragma once

#include <atomic>
#include <chrono>

#include "base/clock.h"
#include "base/guarded.h"
#include "engine/progress_lock.h"
#include "submission/submissions.h"

namespace farandole {

// The longest time for which one call waits or sleeps, even if it has no limit.
inline constexpr std::chrono::milliseconds kWaitMax = std::chrono::hours(24);

struct SharedState {
  struct Contents {
    Submissions submissions;
    ProgressLock progress_lock;
    TimePoint published_at{};  // when finished calls were published last
  };

  bool has_work(const Contents& contents) const {
    return contents.submissions.calls_in_flight() > 0 || has_unsent || has_traffic;
  }
  void wake(ProgressLock::Wake target) {
    if (target == ProgressLock::Wake::kCallers) guarded.notify_all();
    if (target == ProgressLock::Wake::kProgress) progress_queue.notify_all();
  }

  Guarded<Contents> guarded;
  WaitQueue progress_queue;  // the thread "progress" waits here for work
  WaitQueue nap_queue;       // the thread "progress" naps here
  // The holder of the progress lock can read these flags without locking the guard.
  std::atomic<bool> has_arrivals = false;  // there are submissions that the holder has not taken
  std::atomic<bool> must_release = false;  // the holder must release the lock
  std::atomic<bool> has_unsent = false;    // see Memberships::has_unsent()
  std::atomic<bool> has_traffic = false;   // see Channels::watch_traffic()
};

}  // namespace farandole
