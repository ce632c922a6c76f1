// ProgressLock: who makes progress for all groups of an engine, who sleeps, and whom a change
// wakes. One thread at a time holds it. Claims (a change of the groups, the end of the engine) go
// first, then callers of wait() and submit(), and the thread "progress" only where no caller is:
// waking it for a call that its caller waits for would cost more than the call.
//
// A plain state machine: the engine guards it with the lock of its submissions, does what it says,
// and owns the threads and what they sleep on. So tests/model runs exactly these decisions in every
// order.
#pragma once

#include <cstdint>

#include "base/check.h"

namespace farandole {

class ProgressLock {
 public:
  // Whom the engine must wake after a change, as soon as its guard is open.
  enum class Wake : std::uint8_t {
    kNobody,
    kCallers,   // all that wait for a call or have a claim
    kProgress,  // the thread "progress", where it waits for work
  };

  // A caller may take it.
  bool is_free() const { return !held_ && !claimed_or_stopping(); }
  bool is_stopping() const { return stopping_; }
  int waiters() const { return waiters_; }

  // A caller of submit() or wait() comes. One that waits counts as a waiter until end_wait().
  void arrive(bool waits) {
    ++calls_;
    waiters_ += waits ? 1 : 0;
  }
  // True: the caller holds it now, since it was free.
  bool try_take() {
    if (!is_free()) return false;
    held_ = true;
    return true;
  }
  // A caller has come that waits. True: the holder is to hear of it by its bell, and hands over.
  bool holder_hands_over() const { return in_background_; }
  // From a caller that goes on waiting.
  [[nodiscard]] Wake give_way() {
    CHECK(held_ && waiters_ > 0, "a caller that waits gives way");
    held_ = false;
    return claimed_or_stopping() ? Wake::kCallers : Wake::kNobody;
  }
  // From any holder that does not wait. `has_work`: something is in flight, or not sent yet.
  [[nodiscard]] Wake release(bool has_work) {
    CHECK(held_, "who holds the progress lock releases it");
    held_ = false;
    in_background_ = false;
    return next(has_work);
  }
  // A waiter that does not hold it goes. Its call may be done or not.
  [[nodiscard]] Wake end_wait(bool has_work) {
    CHECK(waiters_ > 0, "a waiter goes once");
    --waiters_;
    return next(has_work);
  }
  // The holder has finished calls: whom that concerns. `holder_waits`: it is a waiter itself.
  [[nodiscard]] Wake calls_finished(bool holder_waits) const {
    return waiters_ > (holder_waits ? 1 : 0) ? Wake::kCallers : Wake::kNobody;
  }

  // A claim begins. True: somebody holds the lock, and is to hear of it by its bell.
  bool begin_claim();
  bool can_be_claimed() const { return !held_; }
  // Needs can_be_claimed(). Ends with release().
  void take_claimed();

  // No caller takes it any more. False if it was called before. Everybody is to wake up; the end
  // itself then comes as a claim.
  bool stop();

  // The thread "progress" has waited until this, or is_stopping().
  bool may_be_taken_in_background(bool has_work) const {
    return is_free() && waiters_ == 0 && has_work;
  }
  // Then it naps before it looks: callers that keep coming make progress themselves.
  void begin_nap();
  // A nap is over: true if calls have come meanwhile, so another one begins.
  bool naps_on(bool has_work);
  // True: the thread holds it now.
  bool end_nap(bool has_work);

  // A claim, or the end.
  bool claimed_or_stopping() const { return stopping_ || claims_ > 0; }
  // Whether the holder is to give it back. To be asked before it sleeps.
  bool is_called_away(bool has_work) const;

  bool operator==(const ProgressLock&) const = default;

 private:
  Wake next(bool has_work) const {
    if (held_) return Wake::kNobody;
    if (waiters_ > 0 || claimed_or_stopping()) return Wake::kCallers;
    return has_work && !napping_ ? Wake::kProgress : Wake::kNobody;
  }

  int waiters_ = 0;               // callers inside wait(), or submit() with a limit
  int claims_ = 0;                // threads that wait for it with a claim
  std::uint64_t calls_ = 0;       // of submit() and wait(), who look or drive themselves
  std::uint64_t calls_seen_ = 0;  // by the thread "progress"
  bool held_ = false;
  bool in_background_ = false;  // held by the thread "progress"
  bool napping_ = false;        // that thread: it wakes by itself, soon
  bool stopping_ = false;
};

}  // namespace farandole
