#include "engine/loop.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/platform.h"
#include "base/try.h"

namespace farandole {
namespace {

constexpr std::chrono::milliseconds kNoLimit = std::chrono::hours(24);

}  // namespace

Loop::Loop(Doorbells& doorbells, std::vector<std::unique_ptr<GroupMember>> members,
           std::vector<std::int64_t> pids, WaitPolicy policy, const Clock& clock)
    : doorbells_(doorbells),
      members_(std::move(members)),
      pids_(std::move(pids)),
      policy_(policy),
      clock_(clock) {}

Loop::~Loop() { stop(); }

Status Loop::start() {
  try {
    progress_ = std::thread(&Loop::run, this);
  } catch (const std::system_error& error) {
    return Status::stop(fmt::format(
        "cannot start the progress thread ({}); raise `ulimit -u` or the pids limit of the "
        "container",
        error.what()));
  }
  return {};
}

Result<Handle> Loop::submit(const Submission& submission) {
  Handle handle = 0;
  bool baton_is_ours = false;
  {
    auto state = state_.lock();
    if (state->stopping)
      return Status::fix_call("the engine is shut down; call init() before this operation");
    if (const auto over = state->over.find(submission.group); over != state->over.end())
      return over->second;
    FARANDOLE_TRY_ASSIGN(Record* const record, state->table.add(submission));
    handle = record->handle;
    state->inbox.push_back(record);
    inbox_filled_.store(true);
    baton_is_ours = !std::exchange(state->baton_held, true);
  }
  if (!baton_is_ours) {
    doorbells_.ring_self();
    return handle;
  }
  advance();
  release_baton(Next::kAnybody);
  return handle;
}

bool Loop::poll(Handle handle) {
  auto state = state_.lock();
  return state->is_done(handle);
}

bool Loop::wait(Handle handle, std::chrono::milliseconds limit) {
  const TimePoint deadline = clock_.now() + std::min(limit, kNoLimit);
  {
    auto state = state_.lock();
    ++state->waiters;
    if (state->baton_in_background) doorbells_.ring_self();  // it hands the baton over
  }
  bool done = false;
  bool somebody_cares = false;
  for (;;) {
    {
      auto state = state_.lock();
      const bool woke = state.wait_until(
          deadline, [&](State& s) { return s.is_done(handle) || (!s.baton_held && !s.stopping); });
      done = state->is_done(handle);
      if (done || !woke || clock_.now() >= deadline) {
        --state->waiters;
        somebody_cares = state->waiters > 0 || (has_work(*state) && !state->baton_held);
        break;
      }
      state->baton_held = true;
    }
    carry(handle, deadline);
    release_baton(Next::kOtherWaiter);
  }
  if (somebody_cares) state_.notify_all();
  return done;
}

Outcome Loop::take(Handle handle) {
  auto state = state_.lock();
  const Record* const record = state->table.find(handle);
  Outcome none;
  if (record == nullptr)
    none.status = Status::fix_call(fmt::format(
        "the handle {} is unknown: its result was taken already, or it is not ours", handle));
  else if (!record->finished)
    none.status = Status::retry(fmt::format("`{}` is not done yet", record->submission.name));
  else
    return state->table.remove(handle);
  return none;
}

void Loop::stop() {
  {
    auto state = state_.lock();
    if (std::exchange(state->stopping, true)) return;
    stopping_.store(true);
  }
  state_.notify_all();
  doorbells_.ring_self();
  if (progress_.joinable()) progress_.join();
  {
    auto state = state_.lock();
    state.wait([](State& s) { return !s.baton_held; });
    state->baton_held = true;
  }
  std::vector<Record*> finished;
  accept_submissions(finished);
  for (auto& member : members_) {
    member->advance(finished);  // the last messages to the others, if there is room
    member->end(Status::rebuild_group("this rank has called shutdown()"), finished);
  }
  publish(finished);
  release_baton(Next::kAnybody);
}

void Loop::leave(const std::string& reason) {
  std::call_once(left_, [&] { doorbells_.leave(reason); });
}

bool Loop::advance() {
  std::vector<Record*> finished;
  bool moved = accept_submissions(finished);
  for (auto& member : members_) moved |= member->advance(finished);
  end_all_if_one_is_broken(finished);
  const bool closed = doorbells_.closed_by().has_value();
  if (closed != closing_seen_ || doorbells_.leavers() != leavers_seen_) {
    end_groups(finished);
    moved = true;  // a sleeper looks once more, with everything of this written
  }
  unsent_ = std::ranges::any_of(members_, [](const auto& member) { return member->has_unsent(); });
  if (!finished.empty()) publish(finished);
  return moved || !finished.empty();
}

bool Loop::accept_submissions(std::vector<Record*>& finished) {
  if (!inbox_filled_.exchange(false)) return false;
  auto state = state_.lock();
  for (Record* const record : std::exchange(state->inbox, {})) {
    const GroupId group = record->submission.group;
    if (const auto over = state->over.find(group); over != state->over.end()) {
      record->outcome.status = over->second;
      finished.push_back(record);
      continue;
    }
    for (auto& member : members_)
      if (member->id() == group) member->submit(*record);
  }
  return true;
}

// Somebody is gone. Whoever finished its last step before it went has stored all that the others
// need for it: so one more look, until nothing moves, finishes what can be finished. What is known
// of the closing is read first: a death that comes meanwhile is found by the next advance().
void Loop::end_groups(std::vector<Record*>& finished) {
  const bool closed = doorbells_.closed_by().has_value();
  std::uint32_t leavers = 0;
  for (int rank = 0; rank < doorbells_.size(); ++rank) leavers += doorbells_.leaver(rank) ? 1 : 0;
  std::vector<std::pair<GroupMember*, Status>> ends;
  for (auto& member : members_)
    if (const auto end = end_of(*member)) ends.emplace_back(member.get(), *end);
  for (bool moved = true; moved;) {
    moved = false;
    for (auto& member : members_) moved |= member->advance(finished);
  }
  for (auto& [member, status] : ends) {
    member->end(status, finished);
    state_.lock()->over.emplace(member->id(), status);
  }
  leavers_seen_ = leavers;
  if (closed && !std::exchange(closing_seen_, true)) doorbells_.acknowledge_close();
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
  for (auto& member : members_) {
    member->end(status, finished);
    state_.lock()->over.emplace(member->id(), status);
  }
  leave("its engine had to stop: " + status.message());
}

// The first cause is named: a leave that came before the death explains what the group waits for;
// a leave after it is only its consequence.
std::optional<Status> Loop::end_of(const GroupMember& member) const {
  const auto named = [this](int rank) {
    return fmt::format("rank {} (pid {})", rank, pids_[static_cast<std::size_t>(rank)]);
  };
  const auto dead = doorbells_.closed_by();
  std::uint32_t first_ticket = dead ? doorbells_.leavers_before_closing() + 1 : UINT32_MAX;
  std::optional<Status> end;
  if (dead)
    end = Status::rebuild_group(
        fmt::format("{} has died; this job is over: shut down, and start it again", named(*dead)));
  for (const int rank : member.ranks()) {
    const auto leaver = doorbells_.leaver(rank);
    if (rank == doorbells_.rank() || !leaver || leaver->ticket >= first_ticket) continue;
    first_ticket = leaver->ticket;
    end = Status::rebuild_group(fmt::format(
        "{} has left the job ({}); all ranks must make the same calls before any of them leaves",
        named(rank), leaver->reason));
  }
  return end;
}

void Loop::publish(const std::vector<Record*>& finished) {
  bool somebody_waits = false;
  {
    auto state = state_.lock();
    for (Record* const record : finished) {
      wanted_finished_ |= record->handle == wanted_;
      state->table.finish(*record);
    }
    somebody_waits = state->waiters > (wanted_ == 0 ? 0 : 1);
  }
  if (somebody_waits) state_.notify_all();
}

void Loop::carry(Handle wanted, TimePoint deadline) {
  wanted_ = wanted;
  wanted_finished_ = poll(wanted);
  policy_.begin_wait(clock_.now());
  while (!wanted_finished_ && !stopping_) {
    const bool moved = advance();
    const TimePoint now = clock_.now();
    if (now >= deadline) break;
    if (moved) {
      policy_.begin_wait(now);
      continue;
    }
    switch (policy_.next(now)) {
      case WaitPolicy::Action::kPoll:
        cpu_pause();
        break;
      case WaitPolicy::Action::kYield:
        ::sched_yield();
        break;
      case WaitPolicy::Action::kSleep:
        sleep(false, deadline);
        break;
    }
  }
  wanted_ = 0;
  wanted_finished_ = false;
}

// No spinning here: the processor belongs to those who compute.
void Loop::carry_in_background() {
  while (!called_away(true))
    if (!advance()) sleep(true, clock_.now() + kNoLimit);
}

void Loop::sleep(bool in_background, TimePoint deadline) {
  const std::uint32_t ticket = doorbells_.prepare_sleep();
  const bool moved = advance();
  if (moved || wanted_finished_ || called_away(in_background))
    doorbells_.cancel_sleep();
  else
    doorbells_.sleep(ticket, deadline - clock_.now());
}

// The inbox is no reason: advance() has looked at it after prepare_sleep(), and whoever fills it
// later rings.
bool Loop::called_away(bool in_background) {
  auto state = state_.lock();
  return state->stopping || (in_background && (state->waiters > 0 || !has_work(*state)));
}

bool Loop::has_work(const State& state) const { return state.table.in_flight() > 0 || unsent_; }

void Loop::release_baton(Next next) {
  bool somebody_cares = false;
  {
    auto state = state_.lock();
    state->baton_held = false;
    state->baton_in_background = false;
    const int others = next == Next::kOtherWaiter ? state->waiters - 1 : state->waiters;
    somebody_cares = others > 0 || state->stopping || (next == Next::kAnybody && has_work(*state));
  }
  if (somebody_cares) state_.notify_all();
}

void Loop::run() {
  ::pthread_setname_np(::pthread_self(), "farandole-prog");
  for (;;) {
    {
      auto state = state_.lock();
      state.wait([this](State& s) {
        return s.stopping || (!s.baton_held && s.waiters == 0 && has_work(s));
      });
      if (state->stopping) return;
      state->baton_held = true;
      state->baton_in_background = true;
    }
    carry_in_background();
    release_baton(Next::kAnybody);
  }
}

}  // namespace farandole
