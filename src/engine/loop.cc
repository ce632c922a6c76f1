#include "engine/loop.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <system_error>
#include <utility>

#include "base/own_thread.h"
#include "base/time_slice.h"
#include "base/try.h"
#include "submission/submission_check.h"

namespace farandole {
namespace {

constexpr std::chrono::milliseconds kNoLimit = std::chrono::hours(24);
// How often a waiting rank looks whether FARANDOLE_STALL_LIMIT has passed.
constexpr std::chrono::milliseconds kStallCheck(250);
// How long a rank that ends its groups waits for the next move of a step that all have entered.
constexpr std::chrono::milliseconds kFinishTime(1000);
// How often whoever moves something reads the clock, for its own limit and for the members: that
// costs as much as a move.
constexpr int kMovesPerReading = 16;
// How long the thread "progress" leaves the looking to callers that keep coming: to wake it for
// each of a thousand calls would cost more than the calls.
constexpr std::chrono::microseconds kNap(50);

}  // namespace

Loop::Loop(Doorbells& doorbells, std::vector<std::unique_ptr<GroupMember>> members,
           FlightRecorder& recorder, const Clock& clock, Options options)
    : doorbells_(doorbells),
      members_(std::move(members)),
      recorder_(recorder),
      clock_(clock),
      options_(std::move(options)),
      failures_(doorbells) {
  auto state = state_.lock();
  for (const auto& member : members_) state->open.emplace(member->id(), true);
}

Loop::~Loop() { stop(); }

Status Loop::start() {
  try {
    progress_ = std::thread(&Loop::run, this);
  } catch (const std::system_error& error) {
    return Status::stop(
        fmt::format("cannot start the progress thread ({}); raise `ulimit -u` or the pids limit of "
                    "the container, "
                    "or, since a thread needs room for its stack, `ulimit -v`",
                    error.what()));
  }
  return {};
}

Status Loop::submit(std::span<const Submission> batch, std::span<Handle> handles,
                    std::chrono::milliseconds wait_limit) {
  const TimePoint now = clock_.now();
  const bool waits = wait_limit.count() > 0;
  bool progress_lock_is_ours = false;
  {
    auto state = state_.lock();
    if (state->stopping)
      return Status::fix_call("the engine is shut down; call init() before this operation");
    state->inbox.reserve(state->inbox.size() + batch.size());
    for (const Submission& submission : batch) state->contexts.know(submission.group);
    FARANDOLE_TRY(add_all(*state, batch, handles));
    const std::uint32_t number = batch.size() > 1 ? state->contexts.next_batch() : 0;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      Record* const record = state->table.find(handles[i]);
      record->submitted = now;
      record->context = state->contexts.submitted(record->submission.group, number);
      recorder_.submitted(record->handle, record->submission,
                          record->interned->interned.name_digest, now);
      state->inbox.push_back(record);
    }
    ++state->calls;
    progress_lock_is_ours = !std::exchange(state->progress_locked, true);
    if (progress_lock_is_ours && arrived_.empty())
      arrived_.swap(state->inbox);
    else
      inbox_filled_.store(true);
    if (waits) begin_wait(*state, handles.front(), now);
  }
  if (!progress_lock_is_ours) doorbells_.ring_self();
  if (waits) {
    wait_for({handles.front(), handles.size()}, now + std::min(wait_limit, kNoLimit),
             progress_lock_is_ours);
  } else if (progress_lock_is_ours) {
    advance();
    release_progress_lock();
  }
  return {};
}

// All of them or, on an error, none.
Status Loop::add_all(State& state, std::span<const Submission> batch, std::span<Handle> handles) {
  std::size_t added = 0;
  const auto take_back = [&] {
    while (added > 0) state.table.roll_back(*state.table.find(handles[--added]));
  };
  try {
    for (; added < batch.size(); ++added) {
      const Status rejection = rejection_of(state, batch[added].group);
      const auto record =
          rejection.ok() ? state.table.add(batch[added]) : Result<Record*>(rejection);
      if (record.ok()) {
        handles[added] = (*record)->handle;
        continue;
      }
      take_back();
      return record.status();
    }
  } catch (const std::bad_alloc&) {
    take_back();
    throw;
  }
  return {};
}

Status Loop::rejection_of(const State& state, GroupId group) {
  if (const auto over = state.over.find(group); over != state.over.end()) return over->second;
  if (const auto open = state.open.find(group); open != state.open.end() && open->second) return {};
  return Status::fix_call(
      fmt::format("group {} is being removed; no more calls can be made in it", group));
}

bool Loop::poll(Handle handle) {
  auto state = state_.lock();
  Record* const record = state->table.find(handle);
  state->observe(record);
  return record == nullptr || record->finished;
}

void Loop::State::observe(Record* record) {
  if (record == nullptr || !record->finished || std::exchange(record->observed, true)) return;
  contexts.observed(record->submission.group);
}

bool Loop::wait(Handle handle, std::chrono::milliseconds limit) {
  const TimePoint now = clock_.now();
  {
    auto state = state_.lock();
    Record* const record = state->table.find(handle);
    state->observe(record);
    if (record == nullptr || record->finished) return true;
    begin_wait(*state, handle, now);
    ++state->calls;
    if (state->locked_in_background) doorbells_.ring_self();  // it hands the progress lock over
  }
  const bool done = wait_for({handle, 1}, now + std::min(limit, kNoLimit), false);
  if (done) {
    auto state = state_.lock();
    state->observe(state->table.find(handle));
  }
  return done;
}

// The record tells where the program waits, and for how long it did.
void Loop::begin_wait(State& state, Handle handle, TimePoint now) {
  if (state.waiters++ == 0) recorder_.blocked(handle, now);
}

void Loop::end_wait(State& state, TimePoint now) {
  if (--state.waiters == 0) recorder_.unblocked(now);
}

// Of a caller that counts as a waiter already. One that has the progress lock has just submitted
// all that is wanted. True when all of it is done.
bool Loop::wait_for(const Wanted& wanted, TimePoint deadline, bool has_progress_lock) {
  std::size_t missing = wanted.count;
  Next next_one = Next::kNobody;
  for (;;) {
    if (has_progress_lock) missing = drive(wanted, missing, deadline);
    auto state = state_.lock();
    if (has_progress_lock) {
      state->progress_locked = false;
      if (state->lock_waiters > 0 || state->stopping) state_.notify_all();
    }
    const bool woke = missing == 0 || state.wait_until(deadline, [&](State& s) {
      missing = s.missing(wanted);
      return missing == 0 || s.progress_lock_is_free();
    });
    const TimePoint now = missing == 0 ? state->published : clock_.now();
    if (missing == 0 || !woke || now >= deadline) {
      end_wait(*state, now);
      next_one = next(*state);
      break;
    }
    has_progress_lock = state->progress_locked = true;
  }
  wake(next_one);
  return missing == 0;
}

Status Loop::absence_of(Handle handle, const Record* record) {
  if (record == nullptr)
    return Status::fix_call(
        fmt::format("the handle {} is unknown: its result was taken already, or it is not ours; "
                    "take each result once",
                    handle));
  if (record->finished) return {};
  return Status::retry(fmt::format("`{}` is not done yet", record->submission.name));
}

Outcome Loop::peek(Handle handle) {
  auto state = state_.lock();
  Record* const record = state->table.find(handle);
  if (Status absence = absence_of(handle, record); !absence.ok())
    return {.status = std::move(absence)};
  state->observe(record);
  return record->outcome;
}

Outcome Loop::take(Handle handle) {
  auto state = state_.lock();
  Record* const record = state->table.find(handle);
  if (Status absence = absence_of(handle, record); !absence.ok())
    return {.status = std::move(absence)};
  state->observe(record);
  return state->table.take(handle);
}

void Loop::drop(Handle handle) {
  auto state = state_.lock();
  Record* const record = state->table.find(handle);
  if (record != nullptr && !std::exchange(record->observed, true))
    state->contexts.dropped(record->submission.group);
  state->table.drop(handle);
}

void Loop::add_member(std::unique_ptr<GroupMember> member) {
  take_progress_lock();
  try {
    members_.reserve(members_.size() + 1);
    state_.lock()->open.emplace(member->id(), true);
  } catch (const std::bad_alloc&) {
    abort_out_of_memory();  // the others have the new group already
  }
  recorder_.enter_group(member->id());
  members_.push_back(std::move(member));
  members_are_new_ = true;
  release_progress_lock();
}

void Loop::remove_member(GroupId group) {
  take_progress_lock();
  std::erase_if(members_, [group](const auto& member) { return member->id() == group; });
  recorder_.leave_group(group);
  {
    auto state = state_.lock();
    state->open.erase(group);
    state->over.erase(group);
    state->contexts.forget(group);
    state->table.forget_group(group);
  }
  release_progress_lock();
}

Status Loop::close_group(GroupId group) {
  auto state = state_.lock();
  if (const auto calls = state->table.not_taken(group); calls > 0)
    return Status::fix_call(fmt::format(
        "group {} has calls that were not waited for ({}): keep the handle of each call "
        "and wait for it before the group is removed (a group cannot be removed after "
        "the handle of one of its calls was dropped)",
        group, calls));
  set_open(*state, group, false);
  return {};
}

void Loop::reopen_group(GroupId group) { set_open(*state_.lock(), group, true); }

void Loop::set_open(State& state, GroupId group, bool open) {
  const auto found = state.open.find(group);
  if (found != state.open.end()) found->second = open;  // else it is none of ours
}

bool Loop::is_over(GroupId group) {
  auto state = state_.lock();
  return state->stopping || state->over.contains(group);
}

void Loop::give_up(const Status& status, std::string_view reason) {
  take_progress_lock();
  try {
    std::vector<Record*> finished;
    end_all(status, reason, finished);
    publish(finished);
  } catch (const std::bad_alloc&) {
    abort_out_of_memory();
  }
  release_progress_lock();
}

void Loop::stop(std::optional<std::string_view> reason) {
  {
    auto state = state_.lock();
    if (std::exchange(state->stopping, true)) return;
    stopping_.store(true);
  }
  state_.notify_all();
  progress_queue_.notify_all();
  nap_queue_.notify_all();
  doorbells_.ring_self();
  if (progress_.joinable()) progress_.join();
  {
    auto state = state_.lock();
    state.wait([](State& s) { return !s.progress_locked; });
    state->progress_locked = true;
  }
  try {
    end_by_shutdown(reason);
  } catch (const std::bad_alloc&) {
    abort_out_of_memory();
  }
  release_progress_lock();
}

void Loop::end_by_shutdown(std::optional<std::string_view> reason) {
  std::vector<Record*> finished;
  accept_submissions(finished);
  finish_running_steps(finished);
  for (auto& member : members_)
    member->end(Status::rebuild_group("this rank has called shutdown()"), finished);
  if (reason) leave(*reason);
  wait_for_writers(finished);
  publish(finished);
}

void Loop::finish_running_steps(std::vector<Record*>& finished) {
  for (TimePoint deadline = clock_.now() + kFinishTime;;) {
    const std::uint32_t ticket = doorbells_.prepare_sleep();
    bool may_move = false;
    bool moved = false;
    for (auto& member : members_)
      may_move |= !member->stop_entering() && !member->somebody_is_gone();
    // After that: whoever is gone has stored everything that the others could use.
    for (auto& member : members_) moved |= member->advance(finished);
    const TimePoint now = clock_.now();
    if (moved) deadline = now + kFinishTime;
    if (!moved && may_move && now < deadline)
      doorbells_.sleep(ticket, deadline - now);
    else
      doorbells_.cancel_sleep();
    if (!moved && (!may_move || now >= deadline)) return;
  }
}

void Loop::wait_for_writers(std::vector<Record*>& finished) {
  for (;;) {
    const std::uint32_t ticket = doorbells_.prepare_sleep();
    const TimePoint now = clock_.now();
    take_memory_back(now);
    bool waits = false;
    TimePoint deadline = TimePoint::max();
    for (auto& member : members_) {
      member->advance(finished);
      waits |= member->waits_for_writers();
      deadline = std::min(deadline, member->deadline().value_or(deadline));
    }
    if (!waits) return doorbells_.cancel_sleep();
    doorbells_.sleep(ticket, deadline - now);
  }
}

// Where a group that goes on awaits results in the same pages, their turn comes later.
void Loop::take_memory_back(TimePoint now) {
  for (auto& member : members_) {
    if (!member->is_overdue(now)) continue;
    const auto pages = SharedHeap::pages_of(member->exposed_output());
    const bool others_await = std::ranges::any_of(members_, [&](const auto& other) {
      const auto awaited = other->awaited_output();
      return awaited.data() < pages.data() + pages.size() &&
             pages.data() < awaited.data() + awaited.size();
    });
    if (others_await)
      member->wait_longer(now);
    else
      member->take_memory_back(now);
  }
}

void Loop::leave(std::string_view reason) {
  std::call_once(left_, [&] { doorbells_.leave(reason); });
}

bool Loop::advance() {
  try {
    return advance_all();
  } catch (const std::bad_alloc&) {
    abort_out_of_memory();
  }
}

// In the middle of a step there is no way back: the others get the reason, and this process ends.
void Loop::abort_out_of_memory() {
  constexpr const char* kReason = "it has no memory left for its own small needs";
  std::fprintf(
      stderr,
      "farandole: rank %d (pid %d) has no memory left (malloc failed); look at `ulimit -v` "
      "and the memory limit of the container. The process ends here.\n",
      doorbells_.rank(), static_cast<int>(::getpid()));
  leave(kReason);
  recorder_.left(kReason, LeaveCause::kOrderly, {}, clock_.now());
  std::abort();
}

bool Loop::advance_all() {
  std::vector<Record*>& finished = finished_;
  finished.clear();
  bool moved = accept_submissions(finished);
  for (auto& member : members_) moved |= member->advance(finished);
  end_all_if_one_is_broken(finished);
  if (options_.stall_limit.count() > 0) end_if_stalled(finished);
  if (std::exchange(members_are_new_, false) || failures_.has_news()) {
    end_groups(finished);
    moved = true;  // a sleeper looks once more, with everything of this written
  }
  const bool unsent =
      std::ranges::any_of(members_, [](const auto& member) { return member->has_unsent(); });
  if (unsent != unsent_) unsent_ = unsent;  // a load is cheaper than a store
  if (!finished.empty()) publish(finished);
  return moved || !finished.empty();
}

void Loop::tick(TimePoint now) {
  try {
    for (auto& member : members_) member->tick(now);
    take_memory_back(now);
  } catch (const std::bad_alloc&) {
    abort_out_of_memory();
  }
}

bool Loop::accept_submissions(std::vector<Record*>& finished) {
  bool moved = false;
  for (;;) {
    for (Record* const record : arrived_) accept(*record, finished);
    moved |= !arrived_.empty();
    arrived_.clear();
    if (!inbox_filled_) return moved;
    auto state = state_.lock();
    inbox_filled_ = false;
    arrived_.swap(state->inbox);
  }
}

void Loop::accept(Record& record, std::vector<Record*>& finished) {
  const GroupId group = record.submission.group;
  const auto member =
      std::ranges::find_if(members_, [group](const auto& one) { return one->id() == group; });
  if (member != members_.end() && !(*member)->ended()) return (*member)->submit(record);
  record.outcome.status =
      member == members_.end()
          ? Status::fix_call(fmt::format("group {} was removed before {} could begin", group,
                                         title(record.submission)))
          : *(*member)->ended();
  finished.push_back(&record);
}

// Somebody is gone. Whoever finished its last step before it went has stored all that the others
// need for it: so one more look, until nothing moves, finishes what can be finished. What is known
// of the ends is read first: a death that comes meanwhile is found by the next advance().
void Loop::end_groups(std::vector<Record*>& finished) {
  const EndedRanks ended = failures_.read();
  if (given_up_) end_all(*given_up_, {}, finished);
  std::vector<std::pair<GroupMember*, GroupFailure>> failures;
  for (auto& member : members_) {
    const auto failure = failure_of(ended, member->ranks(), doorbells_.rank(), options_.pids);
    if (failure) failures.emplace_back(member.get(), *failure);
  }
  for (auto& [member, failure] : failures) member->stop_entering();
  for (bool moved = true; moved;) {
    moved = false;
    for (auto& member : members_) moved |= member->advance(finished);
  }
  for (auto& [member, failure] : failures) {
    recorder_.blame(failure.failed_rank);
    member->end(failure.status, finished);
    state_.lock()->over.emplace(member->id(), failure.status);
  }
}

// A group that ended by itself has met a bug. This rank is no use to the others any more, and they
// must hear of it.
void Loop::end_all_if_one_is_broken(std::vector<Record*>& finished) {
  const auto broken = std::ranges::find_if(members_, [](const auto& member) {
    return member->ended() && member->ended()->code() == StatusCode::kStop;
  });
  if (broken == members_.end()) return;
  {
    auto state = state_.lock();
    if (state->over.contains((*broken)->id())) return;
  }
  const Status status = *(*broken)->ended();
  end_all(status, "its engine had to stop: " + status.message(), finished);
}

void Loop::end_all(const Status& status, std::string_view reason, std::vector<Record*>& finished) {
  if (!given_up_) finish_running_steps(finished);
  for (auto& member : members_) {
    member->end(status, finished);
    state_.lock()->over.emplace(member->id(), status);
  }
  if (given_up_) return;
  given_up_ = status;
  leave(reason);
}

void Loop::end_if_stalled(std::vector<Record*>& finished) {
  const TimePoint now = clock_.now();
  if (now < next_stall_check_) return;
  next_stall_check_ = now + kStallCheck;
  std::string name;
  {
    auto state = state_.lock();
    const Record* const oldest = state->table.oldest();
    if (oldest == nullptr || now - oldest->submitted < options_.stall_limit) return;
    name = title(oldest->submission);
  }
  const auto seconds = options_.stall_limit.count();
  end_all(Status::rebuild_group(fmt::format(
              "{} has waited {} s for other ranks, which is the FARANDOLE_STALL_LIMIT; the "
              "launcher's report says for which",
              name, seconds)),
          fmt::format("it gave up: {} had waited {} s, the FARANDOLE_STALL_LIMIT", name, seconds),
          finished);
}

void Loop::publish(const std::vector<Record*>& finished) {
  const TimePoint now = clock_.now();
  bool somebody_waits = false;
  {
    auto state = state_.lock();
    state->published = now;
    for (Record* const record : finished) {
      recorder_.finished(record->handle, record->outcome.status.ok(), now);
      if (wanted_.has(record->handle)) --missing_;
      state->table.finish(*record);
    }
    somebody_waits = state->waiters > (wanted_.count == 0 ? 0 : 1);
  }
  if (somebody_waits) state_.notify_all();
}

// Until nothing of what is wanted is missing, the time is over or somebody else must have the
// progress lock. Returns how much is missing.
std::size_t Loop::drive(const Wanted& wanted, std::size_t missing, TimePoint deadline) {
  wanted_ = wanted;
  missing_ = missing;
  int moves = 0;
  bool time_is_over = false;
  options_.policy.begin_wait(clock_);
  while (missing_ > 0 && !time_is_over && !stopping_ && !called_away_) {
    if (advance()) {
      options_.policy.begin_wait(clock_);
      if (++moves % kMovesPerReading != 0) continue;
      const TimePoint now = clock_.now();
      tick(now);
      time_is_over = now >= deadline;
      continue;
    }
    if (wait_awake(options_.policy, clock_)) continue;
    sleep(nullptr, deadline);
    time_is_over = clock_.now() >= deadline;
  }
  wanted_ = {};
  return std::exchange(missing_, 0);
}

// No spinning here: the processor belongs to those who compute.
void Loop::drive_in_background(std::uint64_t calls) {
  for (int moves = 0; !called_away(&calls);) {
    if (!advance())
      sleep(&calls, clock_.now() + kNoLimit);
    else if (++moves % kMovesPerReading == 0)
      tick(clock_.now());
  }
  advance();  // for the call that has come
}

void Loop::sleep(const std::uint64_t* calls, TimePoint deadline) {
  const std::uint32_t ticket = doorbells_.prepare_sleep();
  tick(clock_.now());
  const bool moved = advance();
  const bool wanted_is_done = wanted_.count > 0 && missing_ == 0;
  if (moved || wanted_is_done || called_away(calls)) return doorbells_.cancel_sleep();
  for (const auto& member : members_)
    if (const auto theirs = member->deadline()) deadline = std::min(deadline, *theirs);
  Duration limit = deadline - clock_.now();
  if (options_.stall_limit.count() > 0) limit = std::min<Duration>(limit, kStallCheck);
  take_short_time_slices();
  doorbells_.sleep(ticket, limit);
}

// The inbox is no reason: advance() has looked at it after prepare_sleep(), and whoever fills it
// later rings.
bool Loop::called_away(const std::uint64_t* calls) {
  auto state = state_.lock();
  if (state->stopping || state->lock_waiters > 0) return true;
  return calls != nullptr && (state->waiters > 0 || state->calls != *calls || !has_work(*state));
}

bool Loop::has_work(const State& state) const { return state.table.in_flight() > 0 || unsent_; }

void Loop::take_progress_lock() {
  auto state = state_.lock();
  ++state->lock_waiters;
  called_away_ = true;
  if (state->progress_locked) doorbells_.ring_self();
  state.wait([](State& s) { return !s.progress_locked; });
  --state->lock_waiters;
  called_away_ = state->lock_waiters > 0;
  state->progress_locked = true;
}

void Loop::release_progress_lock() {
  Next next_one = Next::kNobody;
  {
    auto state = state_.lock();
    state->progress_locked = false;
    state->locked_in_background = false;
    next_one = next(*state);
  }
  wake(next_one);
}

Loop::Next Loop::next(const State& state) const {
  if (state.progress_locked) return Next::kNobody;
  if (state.waiters > 0 || state.lock_waiters > 0 || state.stopping) return Next::kCallers;
  return has_work(state) && !state.napping ? Next::kProgress : Next::kNobody;
}

void Loop::wake(Next next) {
  if (next == Next::kCallers) state_.notify_all();
  if (next == Next::kProgress) progress_queue_.notify_all();
}

bool Loop::may_drive_in_background(const State& state) const {
  return state.progress_lock_is_free() && state.waiters == 0 && has_work(state);
}

void Loop::run() {
  begin_own_thread("farandole-prog");
  for (;;) {
    std::uint64_t calls = 0;
    {
      auto state = state_.lock();
      state.wait_at(progress_queue_,
                    [this](State& s) { return s.stopping || may_drive_in_background(s); });
      state->napping = true;
      do {
        calls = state->calls;
        state.wait_at(nap_queue_, clock_.now() + kNap, [](State& s) { return s.stopping; });
      } while (state->calls != calls && !state->stopping && has_work(*state));
      state->napping = false;
      if (state->stopping) return;
      if (!may_drive_in_background(*state)) continue;
      state->progress_locked = true;
      state->locked_in_background = true;
    }
    drive_in_background(calls);
    release_progress_lock();
  }
}

}  // namespace farandole
