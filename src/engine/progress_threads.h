// ProgressThreads: the threads that make progress. These are the callers of submit() and wait(),
// and the thread "progress". ProgressLock decides which of them holds the progress lock. The holder
// drives the loop, and the other threads sleep here.
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
  using Dependencies = Memberships::Dependencies;
  ProgressThreads(Dependencies dependencies, std::vector<std::unique_ptr<GroupMember>> members,
                  Loop::Options options);
  ~ProgressThreads();  // calls stop()
  ProgressThreads(const ProgressThreads&) = delete;
  ProgressThreads& operator=(const ProgressThreads&) = delete;

  // Starts the thread "progress". Errors: kStop.
  Status start();

  // As in farandole/engine.h, for any thread. The batch must not be empty, and its submissions must
  // have passed check_submission(). `handles` must have one element for each submission.
  Status submit(std::span<const Submission> batch, std::span<Handle> handles,
                std::chrono::milliseconds wait_limit);
  bool wait(Handle handle, std::chrono::milliseconds limit);
  bool poll(Handle handle) { return state_.guarded.lock()->submissions.poll(handle); }
  Outcome peek(Handle handle) { return state_.guarded.lock()->submissions.peek(handle); }
  Outcome take(Handle handle) { return state_.guarded.lock()->submissions.take(handle); }
  void drop(Handle handle) { state_.guarded.lock()->submissions.drop(handle); }

  // Adds or removes this rank's member of a group while other groups run. Any thread; waits for the
  // progress lock.
  void add_member(std::unique_ptr<GroupMember> member);
  void remove_member(GroupId group);
  // See submission/submissions.h; any thread.
  Status close_group(GroupId group) {
    return state_.guarded.lock()->submissions.close_group(group);
  }
  void reopen_group(GroupId group) { state_.guarded.lock()->submissions.reopen_group(group); }
  // Whether all further calls in the group fail. Any thread.
  bool is_over(GroupId group);
  // See Memberships::give_up(). Any thread.
  void give_up(const GiveUpReason& cause);
  // See Memberships::abort_out_of_memory(). Any thread.
  [[noreturn]] void abort_out_of_memory();

  // Ends the thread "progress", and all calls in flight with kRebuildGroup. With a reason, tells
  // the other ranks that this rank leaves. Afterwards this object does not use shared memory any
  // more. Only the first stop() has an effect.
  void stop(std::optional<std::string_view> reason = {});

 private:
  using Contents = SharedState::Contents;

  void count_caller(Contents& state, Handle awaited_handle, TimePoint now);
  bool wait_for(const HandleRange& wanted, TimePoint deadline, bool has_progress_lock);
  void take_progress_lock();
  void release_progress_lock();
  void run();  // the thread "progress" runs this function

  Doorbells& doorbells_;
  FlightRecorder& recorder_;
  const Clock& clock_;
  SharedState state_;
  Memberships memberships_;
  Loop loop_;
  std::thread thread_;
};

}  // namespace farandole
