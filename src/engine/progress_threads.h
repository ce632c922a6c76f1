// ProgressThreads: the threads that make progress, which are the callers that submit and wait, and
// the thread "progress". One at a time holds the progress lock and drives the loop; the others
// sleep here. ProgressLock decides which one.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/loop.h"
#include "engine/memberships.h"
#include "engine/shared_state.h"

namespace farandole {

class ProgressThreads {
 public:
  struct Dependencies {  // all that is borrowed outlives this
    Doorbells& doorbells;
    FlightRecorder& recorder;
    const Clock& clock;
    std::vector<std::int64_t> pids;  // of the members, by rank, for texts
  };
  ProgressThreads(Dependencies dependencies, std::vector<std::unique_ptr<GroupMember>> members,
                  Loop::Options options);
  ~ProgressThreads();  // stop()
  ProgressThreads(const ProgressThreads&) = delete;
  ProgressThreads& operator=(const ProgressThreads&) = delete;

  // Starts the thread "progress". Errors: kStop.
  Status start();

  // As in farandole/engine.h; any thread. The submissions are checked already, and there is one at
  // least. `handles` has room for one of each.
  Status submit(std::span<const Submission> batch, std::span<Handle> handles,
                std::chrono::milliseconds wait_limit);
  bool wait(Handle handle, std::chrono::milliseconds limit);
  bool poll(Handle handle) { return state_.guarded.lock()->submissions.poll(handle); }
  Outcome peek(Handle handle) { return state_.guarded.lock()->submissions.peek(handle); }
  Outcome take(Handle handle) { return state_.guarded.lock()->submissions.take(handle); }
  void drop(Handle handle) { state_.guarded.lock()->submissions.drop(handle); }

  // A group of ours that comes or goes while the others run. Any thread; waits for the progress
  // lock.
  void add_member(std::unique_ptr<GroupMember> member);
  void remove_member(GroupId group);
  // As in submission/submissions.h; any thread.
  Status close_group(GroupId group) {
    return state_.guarded.lock()->submissions.close_group(group);
  }
  void reopen_group(GroupId group) { state_.guarded.lock()->submissions.reopen_group(group); }
  // Whether calls in the group can come to no good end any more. Any thread.
  bool is_over(GroupId group);
  // All groups of this rank end, and it leaves the job. Any thread.
  void give_up(const GivingUp& why);
  // The others get a reason, and this process ends. Any thread.
  [[noreturn]] void abort_out_of_memory();

  // Ends the thread, and what is in flight with kRebuildGroup; then nothing here touches shared
  // memory any more. With a reason it tells the others, before that, that this rank leaves. Only
  // the first call counts.
  void stop(std::optional<std::string_view> reason = {});

 private:
  using Contents = SharedState::Contents;

  void arrive(Contents& state, Handle waits_for, TimePoint now);
  bool wait_for(const HandleRange& wanted, TimePoint deadline, bool has_progress_lock);
  void take_progress_lock();
  void release_progress_lock();
  void run();  // of the thread "progress"

  Doorbells& doorbells_;
  FlightRecorder& recorder_;
  const Clock& clock_;
  SharedState state_;
  Memberships memberships_;
  Loop loop_;
  std::thread thread_;
};

}  // namespace farandole
