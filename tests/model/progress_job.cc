#include "progress_job.h"

#include <algorithm>

namespace farandole::model {
namespace {

using Wake = ProgressLock::Wake;

}  // namespace

bool ProgressLockWithBug::try_take() {
  if (has(ProgressBug::kTakesHeldLock)) return ProgressLock::try_take() || true;
  if (has(ProgressBug::kTakesBeforeClaims) && can_be_claimed() && !is_stopping()) {
    begin_claim();
    take_claimed();
    return true;
  }
  return ProgressLock::try_take();
}

auto ProgressLockWithBug::release_as_waiter() -> Wake {
  const Wake target = ProgressLock::release_as_waiter();
  return has(ProgressBug::kReleaseAsWaiterWakesNobody) ? Wake::kNoThread : target;
}

auto ProgressLockWithBug::release(bool has_work) -> Wake {
  const Wake target = ProgressLock::release(has_work);
  return has(ProgressBug::kReleaseWakesNobody) ? Wake::kNoThread : target;
}

auto ProgressLockWithBug::end_wait(bool has_work) -> Wake {
  const Wake target = ProgressLock::end_wait(has_work);
  if (has(ProgressBug::kWaiterStaysCounted)) arrive(true);
  return has(ProgressBug::kEndOfWaitWakesNobody) ? Wake::kNoThread : target;
}

auto ProgressLockWithBug::wake_after_finished_calls(bool holder_waits) const -> Wake {
  const Wake target = ProgressLock::wake_after_finished_calls(holder_waits);
  return has(ProgressBug::kFinishWakesNobody) ? Wake::kNoThread : target;
}

bool ProgressLockWithBug::end_nap(bool has_work) {
  const bool callers_wait = has(ProgressBug::kProgressTakesBeforeCallers) && waiters() > 0;
  if (callers_wait && is_free()) {
    // Pretends that no caller waits: removes all waiters, calls end_nap(), and adds the waiters
    // again.
    const int waiting = waiters();
    for (int i = 0; i < waiting; ++i) (void)ProgressLock::end_wait(has_work);
    const bool is_ours = ProgressLock::end_nap(has_work);
    for (int i = 0; i < waiting; ++i) arrive(true);
    return is_ours;
  }
  const bool is_ours = ProgressLock::end_nap(has_work);
  if (has(ProgressBug::kNapStaysRecorded)) begin_nap();
  return is_ours;
}

bool ProgressLockWithBug::holder_must_release(bool has_work, int claims) const {
  if (has(ProgressBug::kHolderIgnoresClaims) && claims > 0) return false;
  if (has(ProgressBug::kHolderIgnoresStop) && is_stopping()) return false;
  return ProgressLock::holder_must_release(has_work);
}

ProgressJob::ProgressJob(const ProgressOptions& options)
    : options_(options),
      bells_(arena_.allocate(ModelDoorbells::bytes_needed(2))),
      own_doorbells(bells_, 0, 2),
      peer_doorbells(bells_, 1, 2),
      guarded_index(arena_, "what is guarded"),
      holder(arena_, "holder"),
      taken(arena_, "taken in"),
      claim_is_done(arena_, "claim is done"),
      end_is_done(arena_, "end is done"),
      progress_has_ended(arena_, "progress has ended"),
      progress_is_awake(arena_, "progress is awake"),
      claim_is_awake(arena_, "claim is awake"),
      stop_is_awake(arena_, "stop is awake"),
      guard(cell("guard")),
      has_arrivals(cell("arrivals")) {
  for (int caller = 0; caller < callers(); ++caller) {
    const std::string name = std::to_string(caller);
    caller_is_awake.emplace_back(arena_, "awake " + name);
    is_finished.emplace_back(arena_, "finished " + name);
    time_is_over.emplace_back(arena_, "time is over " + name);
    has_returned.emplace_back(arena_, "returned " + name);
    entered.push_back(&cell("entered " + name));
  }
  auto* const lines =
      reinterpret_cast<ModelDoorbells::Line*>(bells_ + sizeof(ModelDoorbells::Header));
  for (int rank = 0; rank < 2; ++rank) {
    arena_.mark(&lines[rank].bell, "bell " + std::to_string(rank), Site::kBell);
    arena_.mark(&lines[rank].asleep, "asleep " + std::to_string(rank), Site::kAsleep);
  }
  guarded_values_.push_back({.lock = ProgressLockWithBug(options.bug)});
}

ProgressJob::Cell& ProgressJob::cell(const std::string& name) {
  auto* const place = reinterpret_cast<Cell*>(arena_.allocate(sizeof(Cell)));
  arena_.mark(place, name);
  return *place;
}

void ProgressJob::store(const GuardedData& changed) {
  auto place = std::ranges::find(guarded_values_, changed);
  if (place == guarded_values_.end()) place = guarded_values_.insert(place, changed);
  guarded_index.set(static_cast<Value>(place - guarded_values_.begin()));
}

// Checks that claims go first, and that no thread takes the lock while another one holds it.
void ProgressJob::record_holder(const GuardedData& now, bool is_claim) {
  require(arena_, holder.get() == 0, "two hold the progress lock");
  require(arena_, is_claim || now.claims == 0, "a claim was passed over");
  holder.set(1);
}

void ProgressJob::record_arrivals(bool have_arrived) {
  arena_.execution().perform({.action = Action::kStore,
                              .is_ghost = true,
                              .word = arena_.word_of(&has_arrivals),
                              .operand = have_arrived ? Value{1} : Value{0}});
}

// Mirrors publish() of engine/loop.cc.
void ProgressJob::publish(Bits finished, bool holder_waits) {
  const Wake target = run_guarded([&](GuardedData& now) {
    taken.set(taken.get() & ~finished);
    now.in_flight &= ~finished;
    for (int call = 0; call < callers(); ++call)
      if ((finished >> call & 1) != 0) is_finished[static_cast<std::size_t>(call)].set(1);
    return now.lock.wake_after_finished_calls(holder_waits);
  });
  wake(target);
}

void ProgressJob::release() {
  if (has(ProgressBug::kWakesBeforeRelease)) {
    Wake target = Wake::kNoThread;
    run_guarded([&](GuardedData& now) {
      ProgressLockWithBug released_lock = now.lock;
      target = released_lock.release(now.has_work());
    });
    wake(target);
  }
  const Wake target = run_guarded([&](GuardedData& now) {
    record_release();
    return now.lock.release(now.has_work());
  });
  if (!has(ProgressBug::kWakesBeforeRelease)) wake(target);
}

void ProgressJob::wake_at_once(Wake target) {
  if (target == Wake::kProgress) progress_is_awake.set(1);
  if (target != Wake::kCallers) return;
  for (const Ghost& caller : caller_is_awake) caller.set(1);
  claim_is_awake.set(1);
  stop_is_awake.set(1);
}

void ProgressJob::wake(Wake target) {
  if (target == Wake::kNoThread) return;
  enter_guard();  // makes the wake-up a move of its own
  wake_at_once(target);
}

}  // namespace farandole::model
