// ProgressLock: decides which thread makes progress for all groups of an engine, and which sleeping
// threads to wake. One thread at a time holds the lock. Claims (to change the groups or to end the
// engine) come first, then callers of wait() and submit(). The thread "progress" gets the lock only
// if there is no caller, because waking this thread costs more than a call.
//
// ProgressLock is a plain state machine. The engine guards it with the lock of the submissions,
// owns the threads and their wait queues, and wakes the threads that ProgressLock names. So
// tests/model can try every order of these decisions.
#pragma once

#include <cstdint>

#include "base/check.h"

namespace farandole {

class ProgressLock {
 public:
  // Which threads the engine must wake after it has unlocked its guard.
  enum class Wake : std::uint8_t {
    kNoThread,
    kCallers,   // all threads that wait for a call or have a claim
    kProgress,  // the thread "progress", if it waits for work
  };

  // Whether a caller may take the lock.
  bool is_free() const { return !held_ && !is_claimed_or_stopping(); }
  bool is_stopping() const { return stopping_; }
  int waiters() const { return waiters_; }

  // Call it when a thread calls submit() or wait(). If this thread waits, it is a waiter until
  // end_wait().
  void arrive(bool waits) {
    ++calls_;
    waiters_ += waits ? 1 : 0;
  }
  // Takes the lock if it is free. Returns true if the caller holds it now.
  bool try_take() {
    if (!is_free()) return false;
    held_ = true;
    return true;
  }
  // Call it when a thread has begun to wait. If it returns true, the thread "progress" holds the
  // lock. Then ring the rank's bell, so that this thread wakes up and releases the lock.
  bool is_held_in_background() const { return held_in_background_; }
  // Releases the lock of a waiter that continues to wait.
  [[nodiscard]] Wake release_as_waiter() {
    CHECK(held_ && waiters_ > 0, "only a waiter that holds the lock gives way");
    held_ = false;
    return is_claimed_or_stopping() ? Wake::kCallers : Wake::kNoThread;
  }
  // Releases the lock of any other holder. `has_work`: calls are in flight, or messages are unsent.
  [[nodiscard]] Wake release(bool has_work) {
    CHECK(held_, "only the holder releases the progress lock");
    held_ = false;
    held_in_background_ = false;
    return next_wake(has_work);
  }
  // Call it when a waiter without the lock stops waiting, even if its call is not done.
  [[nodiscard]] Wake end_wait(bool has_work) {
    CHECK(waiters_ > 0, "each waiter ends its wait once");
    --waiters_;
    return next_wake(has_work);
  }
  // Call it when the holder has finished calls. `holder_waits`: whether the holder is a waiter.
  [[nodiscard]] Wake wake_after_finished_calls(bool holder_waits) const {
    return waiters_ > (holder_waits ? 1 : 0) ? Wake::kCallers : Wake::kNoThread;
  }

  // Call it if work has arrived without a call: another process wants to connect.
  [[nodiscard]] Wake wake_for_new_work() const { return next_wake(true); }

  // Begins a claim. If it returns true, a thread holds the lock; then ring the rank's bell, so that
  // this thread wakes up and releases the lock.
  bool begin_claim();
  bool can_be_claimed() const { return !held_; }
  // Takes the lock for a claim. Call it only if can_be_claimed(). release() ends the claim.
  void take_claimed();

  // From now on, no caller can take the lock. The first call returns true; then the engine must
  // wake all threads, and claim the lock for its shutdown. Later calls return false.
  bool stop();

  // The thread "progress" waits until this function or is_stopping() returns true.
  bool may_be_taken_in_background(bool has_work) const {
    return is_free() && waiters_ == 0 && has_work;
  }
  // Call it at the end of that wait. Then the thread "progress" sleeps for a short time, the nap,
  // before it takes the lock. If callers begin to wait during the nap, they make progress
  // themselves.
  void begin_nap();
  // Call it after each nap. Returns true if callers have used the lock during the nap, and there is
  // still work. Then callers probably still make progress themselves, so the thread must nap again.
  bool continue_nap(bool has_work);
  // Call it after the last nap. Returns true if the thread holds the lock now.
  bool end_nap(bool has_work);

  // Whether a thread claims the lock, or the engine ends.
  bool is_claimed_or_stopping() const { return stopping_ || claims_ > 0; }
  // Whether the holder must release the lock. The holder must call this before it sleeps.
  bool holder_must_release(bool has_work) const;

  bool operator==(const ProgressLock&) const = default;

 private:
  Wake next_wake(bool has_work) const {
    if (held_) return Wake::kNoThread;
    if (waiters_ > 0 || is_claimed_or_stopping()) return Wake::kCallers;
    return has_work && !napping_ ? Wake::kProgress : Wake::kNoThread;
  }

  int waiters_ = 0;                       // callers inside wait(), or submit() with a limit
  int claims_ = 0;                        // threads that wait with a claim
  std::uint64_t calls_ = 0;               // calls of submit() and wait() so far
  std::uint64_t calls_at_last_read_ = 0;  // calls_ when the thread "progress" read it last
  bool held_ = false;
  bool held_in_background_ = false;  // whether the thread "progress" holds the lock
  bool napping_ = false;             // whether that thread naps; then it will wake up soon
  bool stopping_ = false;
};

}  // namespace farandole
