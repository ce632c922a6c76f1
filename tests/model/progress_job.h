// A progress job of the model: the threads of one engine around the shipped ProgressLock and
// doorbells, and a peer that enters the calls of these threads. The threads are callers, claims,
// the thread "progress" and stop(). A claim is a request for the lock that goes before all callers;
// a thread makes it to change the groups or to end the engine. Here, the data that the engine
// guards is one value, so each critical section is one move.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "engine/progress_lock.h"
#include "model_atomics.h"
#include "transport/shm/doorbells.h"

namespace farandole::model {

enum class ProgressBug : std::uint8_t {
  kNone,
  // Bugs of ProgressLock.
  kReleaseWakesNobody,
  kReleaseAsWaiterWakesNobody,
  kEndOfWaitWakesNobody,
  kFinishWakesNobody,
  kWaiterStaysCounted,
  kNapStaysRecorded,
  kTakesHeldLock,
  kTakesBeforeClaims,
  kProgressTakesBeforeCallers,
  kHolderIgnoresClaims,
  kHolderIgnoresStop,
  // Bugs of the threads that use the lock.
  kWakesBeforeRelease,
  kSubmitWithoutBell,
  kClaimWithoutBell,
  kStopWakesNobody,
  kSleepsThoughItMustRelease,
};

enum class CallerKind : std::uint8_t {
  kSubmitsAndWaits,   // submit and wait are one call
  kSubmitsThenWaits,  // submit and wait are two calls
  kSubmitsAndPolls,   // polling makes no progress
  kTimesOut,          // submits and waits until its time limit is over, then polls
};

struct ProgressOptions {
  std::vector<CallerKind> callers;  // each makes one call
  bool claim = false;               // the groups are changed once, at any time
  bool stops_at_any_time = false;   // if false, stop() comes after the callers and the claim
  // What the peer waits for before it enters the call of caller 0.
  enum class PeerWait : std::uint8_t { kNothing, kOtherCalls, kClaim, kEnd };
  PeerWait peer_waits_for = PeerWait::kNothing;
  ProgressBug bug = ProgressBug::kNone;
};

// The shipped lock, with a planted bug.
class ProgressLockWithBug : public ProgressLock {
 public:
  explicit ProgressLockWithBug(ProgressBug bug) : bug_(bug) {}

  bool try_take();
  Wake release_as_waiter();
  Wake release(bool has_work);
  Wake end_wait(bool has_work);
  Wake wake_after_finished_calls(bool holder_waits) const;
  bool end_nap(bool has_work);
  bool holder_must_release(bool has_work, int claims) const;

  bool operator==(const ProgressLockWithBug&) const = default;

 private:
  bool has(ProgressBug bug) const { return bug_ == bug; }

  ProgressBug bug_;
};

class ProgressJob {
 private:
  Arena arena_;  // the first field, because it owns the memory of the other fields
  ProgressOptions options_;
  std::byte* bells_;

 public:
  using ModelDoorbells = BasicDoorbells<ModelAtomics>;
  using Bits = std::uint32_t;  // one per call
  // The data that the engine guards. `claims` is a second count of the claims, to check the lock's
  // own count.
  struct GuardedData {
    ProgressLockWithBug lock;
    Bits arrived = 0;  // submitted, and not yet taken over by a holder
    Bits in_flight = 0;
    int claims = 0;

    bool has_work() const { return in_flight != 0; }
    bool operator==(const GuardedData&) const = default;
  };

  explicit ProgressJob(const ProgressOptions& options);
  ProgressJob(const ProgressJob&) = delete;
  ProgressJob& operator=(const ProgressJob&) = delete;

  const ProgressOptions& options() const { return options_; }
  bool has(ProgressBug bug) const { return options_.bug == bug; }
  int callers() const { return static_cast<int>(options_.callers.size()); }
  Arena& arena() { return arena_; }

  // Runs one critical section at once, and returns what `section` returns.
  template <class Section>
  auto run_guarded(Section section) {
    enter_guard();
    GuardedData now = load();
    if constexpr (std::is_void_v<decltype(section(now))>) {
      section(now);
      store(now);
    } else {
      auto result = section(now);
      store(now);
      return result;
    }
  }

  // Marks the calls `finished` as done, and wakes the threads that wait for them.
  void publish(Bits finished, bool holder_waits);
  // Releases the lock. The caller of this function holds the lock without waiting for a call.
  void release();
  // Records whether calls have arrived. Call this function inside a critical section.
  void record_arrivals(bool have_arrived);
  // The next two functions record that a thread takes the progress lock, and that it releases the
  // lock. Call both functions inside a critical section.
  void record_holder(const GuardedData& now, bool is_claim);
  void record_release() { holder.set(0); }
  // Both functions wake the given threads. Call wake_at_once() inside a critical section; wake() is
  // a move of its own.
  void wake_at_once(ProgressLock::Wake target);
  void wake(ProgressLock::Wake target);

  ModelDoorbells own_doorbells;
  ModelDoorbells peer_doorbells;
  Ghost guarded_index;  // the index of the current contents in guarded_values_
  Ghost holder;         // 1 while a thread holds the progress lock
  Ghost taken;          // bits: calls in flight that a holder has taken over
  Ghost claim_is_done;
  Ghost end_is_done;
  Ghost progress_has_ended;
  Ghost progress_is_awake;  // 0 while it waits for work
  Ghost claim_is_awake;
  Ghost stop_is_awake;
  std::deque<Ghost> caller_is_awake;
  std::deque<Ghost> is_finished;   // by call
  std::deque<Ghost> time_is_over;  // by caller
  std::deque<Ghost> has_returned;  // by caller
  using Cell = ModelAtomics::Atomic<std::uint32_t>;
  Cell& guard;
  Cell& has_arrivals;
  std::deque<Cell*> entered;  // for each call: whether the peer has entered

 private:
  Cell& cell(const std::string& name);
  void enter_guard() { guard.fetch_add(0, std::memory_order_seq_cst); }
  GuardedData load() { return guarded_values_[guarded_index.get()]; }
  void store(const GuardedData& changed);

  std::vector<GuardedData> guarded_values_;  // all contents so far
};

}  // namespace farandole::model
