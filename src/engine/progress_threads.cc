#include "engine/progress_threads.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/format.h"
#include "base/thread_setup.h"
#include "base/try.h"

namespace farandole {
namespace {

// How long the thread "progress" naps while waiting callers make progress themselves. To wake this
// thread for each call would cost more than the calls themselves.
constexpr std::chrono::microseconds kNapDuration(50);

}  // namespace

ProgressThreads::ProgressThreads(Dependencies dependencies,
                                 std::vector<std::unique_ptr<GroupMember>> members,
                                 Loop::Options options)
    : doorbells_(dependencies.doorbells),
      recorder_(dependencies.recorder),
      clock_(dependencies.clock),
      memberships_(std::move(dependencies)),
      loop_(state_, doorbells_, memberships_, recorder_, clock_, options) {
  auto state = state_.guarded.lock();
  for (auto& member : members) {
    state->submissions.open_group(member->id());
    memberships_.add(std::move(member));
  }
}

ProgressThreads::~ProgressThreads() { stop(); }

Status ProgressThreads::start() {
  memberships_.watch_traffic([this] {
    state_.has_traffic = true;
    auto threads_to_wake = ProgressLock::Wake::kNoThread;
    {
      auto state = state_.guarded.lock();
      threads_to_wake = state->progress_lock.wake_for_new_work();
    }
    state_.wake(threads_to_wake);
  });
  try {
    thread_ = std::thread(&ProgressThreads::run, this);
  } catch (const std::system_error& error) {
    return Status::stop(
        format_text("cannot start the progress thread ({}); raise `ulimit -u` or the pids limit of "
                    "the container, or, since a thread needs room for its stack, `ulimit -v`",
                    error.what()));
  }
  return {};
}

Status ProgressThreads::submit(std::span<const Submission> batch, std::span<Handle> handles,
                               std::chrono::milliseconds wait_limit) {
  const TimePoint now = clock_.now();
  const bool must_wait = wait_limit.count() > 0;
  bool has_progress_lock = false;
  {
    auto state = state_.guarded.lock();
    if (state->progress_lock.is_stopping())
      return Status::fix_call("the engine is shut down; call init() before this operation");
    FARANDOLE_TRY(state->submissions.add(batch, handles, now));
    for (const Record* const record : state->submissions.newest_records(batch.size()))
      recorder_.record_submitted(record->handle, record->submission,
                                 record->interned->interned.name_digest, now);
    count_caller(*state, must_wait ? handles.front() : 0, now);
    has_progress_lock = state->progress_lock.try_take();
    if (!has_progress_lock || !loop_.take_arrived(state->submissions)) state_.has_arrivals = true;
  }
  if (!has_progress_lock) doorbells_.ring_self();
  if (must_wait) {
    wait_for({handles.front(), handles.size()}, now + std::min(wait_limit, kWaitMax),
             has_progress_lock);
  } else if (has_progress_lock) {
    loop_.advance_once();
    release_progress_lock();
  }
  return {};
}

bool ProgressThreads::wait(Handle handle, std::chrono::milliseconds limit) {
  const TimePoint now = clock_.now();
  {
    auto state = state_.guarded.lock();
    if (state->submissions.poll(handle)) return true;
    count_caller(*state, handle, now);
    if (state->progress_lock.is_held_in_background()) doorbells_.ring_self();
  }
  const bool done = wait_for({handle, 1}, now + std::min(limit, kWaitMax), false);
  if (done) poll(handle);
  return done;
}

// Counts a caller. `awaited_handle` is the handle for which the caller waits, or 0. The flight
// record then says that the program waits.
void ProgressThreads::count_caller(Contents& state, Handle awaited_handle, TimePoint now) {
  state.progress_lock.arrive(awaited_handle != 0);
  if (awaited_handle != 0 && state.progress_lock.waiters() == 1)
    recorder_.record_blocked(awaited_handle, now);
}

// Waits for calls, after arrive(). If the caller has the progress lock, it has just submitted these
// calls, so they are all unfinished. Returns true if all are finished.
bool ProgressThreads::wait_for(const HandleRange& wanted, TimePoint deadline,
                               bool has_progress_lock) {
  std::size_t unfinished = wanted.count;
  auto threads_to_wake = ProgressLock::Wake::kNoThread;
  for (;;) {
    if (has_progress_lock) unfinished = loop_.drive(wanted, unfinished, deadline);
    auto state = state_.guarded.lock();
    if (has_progress_lock) state_.wake(state->progress_lock.release_as_waiter());
    const bool condition_met =
        unfinished == 0 || state.wait_until(deadline, [&](Contents& contents) {
          unfinished = contents.submissions.count_unfinished(wanted);
          return unfinished == 0 || contents.progress_lock.is_free();
        });
    const TimePoint now = unfinished == 0 ? state->published_at : clock_.now();
    if (unfinished == 0 || !condition_met || now >= deadline) {
      threads_to_wake = state->progress_lock.end_wait(state_.has_work(*state));
      if (state->progress_lock.waiters() == 0) recorder_.record_unblocked(now);
      break;
    }
    has_progress_lock = state->progress_lock.try_take();
  }
  state_.wake(threads_to_wake);
  return unfinished == 0;
}

void ProgressThreads::add_member(std::unique_ptr<GroupMember> member) {
  take_progress_lock();
  loop_.change([&](Memberships& memberships, std::vector<Record*>&) {
    state_.guarded.lock()->submissions.open_group(member->id());
    memberships.add(std::move(member));
  });
  release_progress_lock();
}

void ProgressThreads::remove_member(GroupId group) {
  take_progress_lock();
  loop_.change([&](Memberships& memberships, std::vector<Record*>&) {
    memberships.remove(group);
    state_.guarded.lock()->submissions.forget_group(group);
  });
  release_progress_lock();
}

bool ProgressThreads::is_over(GroupId group) {
  auto state = state_.guarded.lock();
  return state->progress_lock.is_stopping() || state->submissions.is_over(group);
}

void ProgressThreads::give_up(const GiveUpReason& cause) {
  take_progress_lock();
  loop_.change([&](Memberships& memberships, std::vector<Record*>& finished) {
    memberships.give_up(cause, finished);
  });
  release_progress_lock();
}

void ProgressThreads::abort_out_of_memory() {
  take_progress_lock();
  memberships_.abort_out_of_memory();
}

void ProgressThreads::stop(std::optional<std::string_view> reason) {
  {
    auto state = state_.guarded.lock();
    if (!state->progress_lock.stop()) return;
    state_.must_release = true;
  }
  state_.guarded.notify_all();
  state_.progress_queue.notify_all();
  state_.nap_queue.notify_all();
  doorbells_.ring_self();
  if (thread_.joinable()) thread_.join();
  take_progress_lock();
  loop_.run_last_round(reason);
  release_progress_lock();
}

void ProgressThreads::take_progress_lock() {
  auto state = state_.guarded.lock();
  if (state->progress_lock.begin_claim()) doorbells_.ring_self();
  state_.must_release = true;
  state.wait([](Contents& contents) { return contents.progress_lock.can_be_claimed(); });
  state->progress_lock.take_claimed();
  state_.must_release = state->progress_lock.is_claimed_or_stopping();
}

void ProgressThreads::release_progress_lock() {
  auto threads_to_wake = ProgressLock::Wake::kNoThread;
  {
    auto state = state_.guarded.lock();
    threads_to_wake = state->progress_lock.release(state_.has_work(*state));
  }
  state_.wake(threads_to_wake);
}

void ProgressThreads::run() {
  set_up_own_thread("farandole-prog");
  for (;;) {
    {
      auto state = state_.guarded.lock();
      ProgressLock& progress_lock = state->progress_lock;
      state.wait_at(state_.progress_queue, [this](Contents& contents) {
        return contents.progress_lock.is_stopping() ||
               contents.progress_lock.may_be_taken_in_background(state_.has_work(contents));
      });
      progress_lock.begin_nap();
      do {
        if (state->submissions.calls_with_completion() > 0)
          break;  // perhaps no other thread makes progress for these calls
        state.wait_at(state_.nap_queue, clock_.now() + kNapDuration,
                      [](Contents& contents) { return contents.progress_lock.is_stopping(); });
      } while (progress_lock.continue_nap(state_.has_work(*state)));
      const bool has_progress_lock = progress_lock.end_nap(state_.has_work(*state));
      if (progress_lock.is_stopping()) return;
      if (!has_progress_lock) continue;
    }
    loop_.drive_in_background();
    release_progress_lock();
  }
}

}  // namespace farandole
