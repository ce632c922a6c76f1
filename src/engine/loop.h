// Loop: the engine's only loop. Whoever holds the progress lock makes progress for all groups: a
// caller of wait(), or of submit(), which without a limit looks only once, else the thread
// "progress". Everybody else sleeps.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/guarded.h"
#include "engine/failure.h"
#include "engine/group_member.h"
#include "submission/context_tracker.h"
#include "submission/submission_table.h"
#include "timeline/flight_record.h"
#include "transport/shm/doorbells.h"
#include "transport/shm/wait_policy.h"

namespace farandole {

class Loop {
 public:
  struct Options {
    std::vector<std::int64_t> pids;  // of the members, by rank, for texts
    WaitPolicy policy;
    std::chrono::seconds stall_limit{0};  // see EngineOptions
  };
  // All that is borrowed outlives this.
  Loop(Doorbells& doorbells, std::vector<std::unique_ptr<GroupMember>> members,
       FlightRecorder& recorder, const Clock& clock, Options options);
  ~Loop();  // stop()
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Starts the thread "progress". Errors: kStop.
  Status start();

  // As in farandole/engine.h; any thread. The submissions are checked already, and there is one at
  // least. `handles` has room for one of each.
  Status submit(std::span<const Submission> batch, std::span<Handle> handles,
                std::chrono::milliseconds wait_limit);
  bool poll(Handle handle);
  bool wait(Handle handle, std::chrono::milliseconds limit);
  Outcome peek(Handle handle);
  Outcome take(Handle handle);
  void drop(Handle handle);

  // A group of ours that comes or goes while the others run. Any thread; waits for the progress
  // lock.
  void add_member(std::unique_ptr<GroupMember> member);
  void remove_member(GroupId group);
  // Rejects further submissions to the group, for good or until reopen_group(). Errors: kFixCall
  // when some of ours there were not taken: whether they are still in flight depends on time.
  Status close_group(GroupId group);
  void reopen_group(GroupId group);
  // Whether calls in the group can come to no good end any more. Any thread.
  bool is_over(GroupId group);
  // All groups of this rank end with `status`, and it leaves the job with `reason`. Any thread.
  void give_up(const Status& status, std::string_view reason);

  // Ends the thread, and what is in flight with kRebuildGroup; then nothing of this loop touches
  // shared memory any more. With a reason it tells the others, before that, that this rank leaves.
  // Only the first call counts.
  void stop(std::optional<std::string_view> reason = {});

 private:
  // What somebody waits for: a call, or those of a batch, whose handles follow one another.
  struct Wanted {
    Handle first = 0;
    std::size_t count = 0;

    bool has(Handle handle) const { return handle - first < count; }
  };

  struct State {
    SubmissionTable table;
    ContextTracker contexts;
    std::vector<Record*> inbox;      // submitted, not yet seen by the holder of the progress lock
    std::map<GroupId, bool> open;    // our groups; false: one that is being removed
    std::map<GroupId, Status> over;  // our groups that have ended, and why
    int waiters = 0;                 // callers inside wait(), or submit() with a limit
    TimePoint published{};           // when calls were finished last
    int lock_waiters = 0;            // callers inside take_progress_lock(); they go first
    std::uint64_t calls = 0;         // of submit() and wait(), who look or carry themselves
    bool progress_locked = false;
    bool locked_in_background = false;  // by the thread "progress"
    bool napping = false;               // that thread: it wakes by itself, soon
    bool stopping = false;

    bool progress_lock_is_free() const {
      return !progress_locked && !stopping && lock_waiters == 0;
    }
    // The user learns of the call, which may be null, that it is done if it is. When that is
    // depends on time, so it steers predictions only, by `contexts`: no name and no result.
    void observe(Record* record);
    // Unknown handles count as done.
    bool is_done(Handle handle) {
      const Record* const record = table.find(handle);
      return record == nullptr || record->finished;
    }
    std::size_t missing(const Wanted& wanted) {
      std::size_t missing = 0;
      for (Handle handle = wanted.first; wanted.has(handle); ++handle)
        missing += is_done(handle) ? 0 : 1;
      return missing;
    }
  };

  // What peek() and take() answer when there is no outcome yet, or no call; ok when there is one.
  static Status absence_of(Handle handle, const Record* record);
  // Why nothing can be submitted to a group; ok when it can.
  static Status rejection_of(const State& state, GroupId group);
  static Status add_all(State& state, std::span<const Submission> batch, std::span<Handle> handles);

  static void set_open(State& state, GroupId group, bool open);

  // The holder of the progress lock only, without the lock:
  bool advance();
  bool advance_all();
  // Tells the members the time. advance() does not: reading the clock costs as much as it does.
  void tick(TimePoint now);
  [[noreturn]] void abort_out_of_memory();
  void end_by_shutdown(std::optional<std::string_view> reason);
  // This rank ends all its groups: drives the steps that all have entered until they are done, or
  // do not move any more.
  void finish_running_steps(std::vector<Record*>& finished);
  // Until no other rank writes into memory of calls that have ended.
  void wait_for_writers(std::vector<Record*>& finished);
  void take_memory_back(TimePoint now);
  // Tells the others that this rank leaves, and why. Only the first reason counts. After all groups
  // have ended, since a rank that has left writes nothing any more; before the calls are published,
  // since the others may still read their memory.
  void leave(std::string_view reason);
  bool accept_submissions(std::vector<Record*>& finished);
  void accept(Record& record, std::vector<Record*>& finished);
  void end_groups(std::vector<Record*>& finished);
  void end_all_if_one_is_broken(std::vector<Record*>& finished);
  void end_all(const Status& status, std::string_view reason, std::vector<Record*>& finished);
  void end_if_stalled(std::vector<Record*>& finished);
  void publish(const std::vector<Record*>& finished);
  void begin_wait(State& state, Handle handle, TimePoint now);
  void end_wait(State& state, TimePoint now);
  bool wait_for(const Wanted& wanted, TimePoint deadline, bool has_progress_lock);
  std::size_t drive(const Wanted& wanted, std::size_t missing, TimePoint deadline);
  void drive_in_background(std::uint64_t calls);
  // `calls`: in the thread "progress", how many it knows of; null in a caller.
  void sleep(const std::uint64_t* calls, TimePoint deadline);
  bool called_away(const std::uint64_t* calls);
  bool may_drive_in_background(const State& state) const;
  bool has_work(const State& state) const;

  // Who is to go on now. The thread "progress" only where no caller does: waking it for a call that
  // its caller waits for would cost more than the call.
  enum class Next : std::uint8_t { kNobody, kCallers, kProgress };
  Next next(const State& state) const;
  void wake(Next next);
  void take_progress_lock();
  void release_progress_lock();
  void run();  // of the thread "progress"

  Doorbells& doorbells_;
  std::vector<std::unique_ptr<GroupMember>> members_;  // of the holder of the progress lock
  FlightRecorder& recorder_;
  const Clock& clock_;
  Options options_;
  TimePoint next_stall_check_{};
  FailureWatch failures_;
  bool members_are_new_ = false;    // and may have ended before they came
  std::optional<Status> given_up_;  // why we have left, if we did so by ourselves
  Wanted wanted_;                   // what the holder of the progress lock waits for
  std::size_t missing_ = 0;         // how many of these are not done
  std::vector<Record*> finished_;   // of advance_all(); kept to save the allocations
  // What the holder of the progress lock has submitted itself, or taken in.
  std::vector<Record*> arrived_;

  Guarded<State> state_;
  WaitQueue progress_queue_;                // where the thread "progress" waits
  WaitQueue nap_queue_;                     // where it naps
  std::atomic<bool> inbox_filled_ = false;  // a hint, so that polling needs no lock
  std::atomic<bool> stopping_ = false;      // the same
  std::atomic<bool> called_away_ = false;   // the same: somebody is inside take_progress_lock()
  std::atomic<bool> unsent_ = false;        // messages wait for room, also with nothing in flight
  std::once_flag left_;
  std::thread progress_;
};

}  // namespace farandole
