#include "engine/loop.h"

#include <algorithm>
#include <utility>

#include "base/thread_setup.h"

namespace farandole {
namespace {

// How often a waiting rank checks whether FARANDOLE_STALL_LIMIT has passed.
constexpr std::chrono::milliseconds kStallCheckInterval(250);
// Reading the clock costs as much as a round, so drive() reads it only once in this many rounds.
constexpr int kRoundsPerClockRead = 16;

}  // namespace

bool Loop::take_arrived(Submissions& submissions) {
  if (!arrived_records_.empty()) return false;
  submissions.take_arrived(arrived_records_);
  return true;
}

std::size_t Loop::drive(const HandleRange& wanted, std::size_t unfinished, TimePoint deadline) {
  wanted_calls_ = wanted;
  unfinished_count_ = unfinished;
  int rounds = 0;
  bool deadline_passed = false;
  policy_.begin_wait(clock_);
  while (unfinished_count_ > 0 && !deadline_passed && !state_.must_release) {
    if (advance()) {
      policy_.begin_wait(clock_);
      if (++rounds % kRoundsPerClockRead != 0) continue;
      const TimePoint now = clock_.now();
      tick(now);
      deadline_passed = now >= deadline;
      continue;
    }
    if (wait_awake(policy_, clock_)) continue;
    sleep(deadline);
    deadline_passed = clock_.now() >= deadline;
  }
  wanted_calls_ = {};
  return std::exchange(unfinished_count_, 0);
}

// Polls only while calls with completions are in flight, because perhaps no thread waits for such
// calls. Otherwise this thread sleeps, so that computing threads can use the processor.
void Loop::drive_in_background() {
  policy_.begin_wait(clock_);
  for (int rounds = 0;;) {
    bool has_completions = false;
    {
      auto state = state_.guarded.lock();
      if (holder_must_release(*state)) break;
      has_completions = state->submissions.calls_with_completion() > 0;
    }
    if (advance()) {
      policy_.begin_wait(clock_);
      if (++rounds % kRoundsPerClockRead == 0) tick(clock_.now());
      continue;
    }
    if (!has_completions || !wait_awake(policy_, clock_)) sleep(clock_.now() + kWaitMax);
  }
  advance();  // processes the last submissions
}

bool Loop::holder_must_release(const SharedState::Contents& contents) const {
  return contents.progress_lock.holder_must_release(state_.has_work(contents));
}

// New submissions need no check here: advance() takes all that have arrived, and a thread that
// submits later rings the bell.
void Loop::sleep(TimePoint deadline) {
  const std::uint32_t ticket = doorbells_.prepare_sleep();
  tick(clock_.now());
  const bool progress = advance();
  const bool wanted_calls_are_done = wanted_calls_.count > 0 && unfinished_count_ == 0;
  bool must_release = false;
  {
    auto state = state_.guarded.lock();
    must_release = holder_must_release(*state);
  }
  if (progress || wanted_calls_are_done || must_release) return doorbells_.cancel_sleep();
  Duration limit = memberships_.deadline(deadline) - clock_.now();
  if (stall_limit_.count() > 0) limit = std::min<Duration>(limit, kStallCheckInterval);
  request_short_time_slices();
  memberships_.ring_on_arrival();
  doorbells_.sleep(ticket, limit);
}

void Loop::run_last_round(std::optional<std::string_view> reason) {
  change([&](Memberships& memberships, std::vector<Record*>& finished) {
    accept_submissions();
    memberships.end_by_shutdown(reason, finished);
  });
}

bool Loop::advance() {
  try {
    return advance_all();
  } catch (const std::bad_alloc&) {
    memberships_.abort_out_of_memory();
  }
}

bool Loop::advance_all() {
  bool progress = accept_submissions();
  const bool has_traffic = state_.has_traffic && state_.has_traffic.exchange(false);
  if (has_traffic) memberships_.request_accept_and_receive_all();
  progress |= memberships_.advance(finished_records_);
  if (has_traffic) memberships_.ring_on_arrival();
  if (stall_limit_.count() > 0) give_up_if_stalled();
  const bool unsent = memberships_.has_unsent();
  if (unsent != state_.has_unsent) state_.has_unsent = unsent;  // a load is cheaper than a store
  progress |= !finished_records_.empty();
  publish();
  return progress;
}

bool Loop::accept_submissions() {
  bool progress = false;
  for (;;) {
    for (Record* const record : arrived_records_) memberships_.submit(*record, finished_records_);
    progress |= !arrived_records_.empty();
    arrived_records_.clear();
    if (!state_.has_arrivals) return progress;
    auto state = state_.guarded.lock();
    state_.has_arrivals = false;
    state->submissions.take_arrived(arrived_records_);
  }
}

void Loop::give_up_if_stalled() {
  const TimePoint now = clock_.now();
  if (now < next_stall_check_) return;
  next_stall_check_ = now + kStallCheckInterval;
  std::optional<GiveUpReason> cause;
  {
    auto state = state_.guarded.lock();
    cause = reason_of_stall(state->submissions.oldest_call(), now, stall_limit_);
  }
  if (cause) memberships_.give_up(*cause, finished_records_);
}

// Publishes the finished calls and the ended groups.
void Loop::publish() {
  if (finished_records_.empty() && !memberships_.any_group_has_ended()) return;
  const TimePoint now = clock_.now();
  auto threads_to_wake = ProgressLock::Wake::kNoThread;
  {
    auto state = state_.guarded.lock();
    if (memberships_.any_group_has_ended())
      for (const auto& [group, status] : memberships_.take_ended_groups())
        state->submissions.end_group(group, status);
    state->published_at = now;
    for (Record* const record : finished_records_) {
      if (wanted_calls_.contains(record->handle)) --unfinished_count_;
      recorder_.record_finished(record->handle, record->outcome.status.ok(), now);
      completions_.add(record->handle, record->submission.completion);
      state->submissions.finish(*record);
    }
    threads_to_wake = state->progress_lock.wake_after_finished_calls(wanted_calls_.count > 0);
  }
  finished_records_.clear();
  state_.wake(threads_to_wake);
  completions_.run();
}

void Loop::tick(TimePoint now) {
  try {
    memberships_.tick(now);
  } catch (const std::bad_alloc&) {
    memberships_.abort_out_of_memory();
  }
}

}  // namespace farandole
