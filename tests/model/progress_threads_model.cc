#include "progress_threads_model.h"

#include <memory>
#include <string>

namespace farandole::model {

using Wake = ProgressLock::Wake;
using GuardedData = ProgressJob::GuardedData;

void Driver::write_key(ByteWriter& key) const {
  key.put(wanted_);
  key.put(stage_);
  key.put(ticket_);
}

void Driver::begin(ProgressJob::Bits wanted) {
  wanted_ = wanted;
  stage_ = Stage::kPrepare;
}

bool Driver::advance(const Ghost* time) {
  const bool time_is_over = time != nullptr && time->get() != 0;
  switch (stage_) {
    case Stage::kPrepare:
      ticket_ = job_->own_doorbells.prepare_sleep();
      stage_ = Stage::kRound;
      break;
    case Stage::kRound: {
      const bool has_advanced = run_round();
      if (!has_advanced && !wanted_is_done() && !time_is_over) {
        stage_ = job_->has(ProgressBug::kSleepsThoughItMustRelease) ? Stage::kSleep
                                                                    : Stage::kCheckRelease;
        break;
      }
      job_->own_doorbells.cancel_sleep();
      stage_ = wanted_is_done() || time_is_over ? Stage::kOver : Stage::kPrepare;
      break;
    }
    case Stage::kCheckRelease: {
      const bool must_release = job_->run_guarded([](GuardedData& now) {
        return now.lock.holder_must_release(now.has_work(), now.claims);
      });
      if (must_release) job_->own_doorbells.cancel_sleep();
      stage_ = must_release ? Stage::kOver : Stage::kSleep;
      break;
    }
    case Stage::kSleep:
      job_->own_doorbells.sleep(ticket_, {});
      stage_ = Stage::kPrepare;
      break;
    case Stage::kOver:
      break;
  }
  if (stage_ == Stage::kPrepare || stage_ == Stage::kOver) ticket_ = 0;
  return stage_ != Stage::kOver;
}

bool Driver::wanted_is_done() const { return wanted_ != 0 && (job_->taken.get() & wanted_) == 0; }

// Takes over the calls that have arrived, and publishes those that the peer has entered.
bool Driver::run_round() {
  bool has_advanced = false;
  if (job_->has_arrivals.load(std::memory_order_seq_cst) != 0) {
    job_->run_guarded([&](GuardedData& now) {
      job_->record_arrivals(false);
      job_->taken.set(job_->taken.get() | now.arrived);
      now.arrived = 0;
    });
    has_advanced = true;
  }
  ProgressJob::Bits finished = 0;
  const auto taken = static_cast<ProgressJob::Bits>(job_->taken.get());
  for (int call = 0; call < job_->callers(); ++call) {
    const ProgressJob::Bits bit = ProgressJob::Bits{1} << call;
    if ((taken & bit) != 0 &&
        job_->entered[static_cast<std::size_t>(call)]->load(std::memory_order_seq_cst) != 0)
      finished |= bit;
  }
  if (finished == 0) return has_advanced;
  job_->publish(finished, wanted_ != 0);
  return true;
}

Caller::Caller(ProgressJob& job, int number) : job_(&job), number_(number), driver_(job) {}

void Caller::write_key(ByteWriter& key) const {
  key.put(number_);
  key.put(stage_);
  key.put(is_holder_);
  driver_.write_key(key);
}

bool Caller::is(CallerKind kind) const {
  return job_->options().callers[static_cast<std::size_t>(number_)] == kind;
}

bool Caller::waits_at_once() const {
  return is(CallerKind::kSubmitsAndWaits) || is(CallerKind::kTimesOut);
}

void Caller::run() {
  const auto own_index = static_cast<std::size_t>(number_);
  switch (stage_) {
    case Stage::kSubmit:
      return submit();
    case Stage::kRing:
      job_->own_doorbells.ring_self();
      return after_submit();
    case Stage::kRoundOnce:
      driver_.run_round();
      stage_ = Stage::kRelease;
      return;
    case Stage::kRelease:
      job_->release();
      is_holder_ = false;
      return after_submit();
    case Stage::kArrive:
      return arrive();
    case Stage::kRingForHandOver:
      job_->own_doorbells.ring_self();
      stage_ = Stage::kWaitFor;
      return;
    case Stage::kDrive:
      if (!driver_.advance(&job_->time_is_over[own_index])) stage_ = Stage::kWaitFor;
      return;
    case Stage::kWaitFor:
      return wait_for();
    case Stage::kBlocked:
      job_->caller_is_awake[own_index].await(1);
      stage_ = Stage::kWaitFor;
      return;
    case Stage::kPoll:
      job_->is_finished[own_index].await(1);
      stage_ = Stage::kReturn;
      return;
    case Stage::kReturn:
      job_->has_returned[own_index].send(1);
      stage_ = Stage::kOver;
      return;
    case Stage::kOver:
      return;
  }
}

// Mirrors submit() of engine/progress_threads.cc.
void Caller::submit() {
  const bool accepted = job_->run_guarded([&](GuardedData& now) {
    if (now.lock.is_stopping()) return false;
    now.arrived |= call();
    now.in_flight |= call();
    now.lock.arrive(waits_at_once());
    is_holder_ = now.lock.try_take();
    if (!is_holder_) {
      job_->record_arrivals(true);
      return true;
    }
    job_->record_holder(now, false);
    job_->taken.set(job_->taken.get() | now.arrived);
    now.arrived = 0;
    return true;
  });
  if (!accepted)
    stage_ = Stage::kReturn;
  else if (!is_holder_ && !job_->has(ProgressBug::kSubmitWithoutBell))
    stage_ = Stage::kRing;
  else if (is_holder_ && !waits_at_once())
    stage_ = Stage::kRoundOnce;
  else
    after_submit();
}

void Caller::after_submit() {
  if (waits_at_once()) {
    driver_.begin(call());
    stage_ = is_holder_ ? Stage::kDrive : Stage::kWaitFor;
  } else {
    stage_ = is(CallerKind::kSubmitsAndPolls) ? Stage::kPoll : Stage::kArrive;
  }
}

// Mirrors the part of wait() that comes before its call of wait_for().
void Caller::arrive() {
  bool is_done = false;
  bool rings = false;
  job_->run_guarded([&](GuardedData& now) {
    is_done = (now.in_flight & call()) == 0;
    if (is_done) return;
    now.lock.arrive(true);
    rings = now.lock.is_held_in_background();
  });
  driver_.begin(call());
  stage_ = is_done ? Stage::kReturn : rings ? Stage::kRingForHandOver : Stage::kWaitFor;
}

void Caller::wait_for() {
  const auto own_index = static_cast<std::size_t>(number_);
  Wake target = Wake::kNoThread;
  job_->run_guarded([&](GuardedData& now) {
    if (is_holder_) {
      job_->record_release();
      job_->wake_at_once(now.lock.release_as_waiter());
      is_holder_ = false;
    }
    const bool is_done = (now.in_flight & call()) == 0;
    if (is_done || job_->time_is_over[own_index].get() != 0) {
      target = now.lock.end_wait(now.has_work());
      stage_ = is_done ? Stage::kReturn : Stage::kPoll;
    } else if (now.lock.is_free()) {
      is_holder_ = now.lock.try_take();
      job_->record_holder(now, false);
      driver_.begin(call());
      stage_ = Stage::kDrive;
    } else {
      job_->caller_is_awake[own_index].set(0);
      stage_ = Stage::kBlocked;
    }
  });
  job_->wake(target);
}

void Claim::write_key(ByteWriter& key) const {
  key.put(stops_);
  key.put(stage_);
  key.put(awaited_);
}

void Claim::run() {
  const Ghost& is_awake = stops_ ? job_->stop_is_awake : job_->claim_is_awake;
  switch (stage_) {
    case Stage::kAwaitOthers:
      return await_others();
    case Stage::kStop:
      return stop();
    case Stage::kWakeAll:
      if (!job_->has(ProgressBug::kStopWakesNobody)) {
        job_->wake(Wake::kProgress);
        job_->wake(Wake::kCallers);
      }
      stage_ = Stage::kRingForStop;
      return;
    case Stage::kRingForStop:
      job_->own_doorbells.ring_self();
      stage_ = Stage::kJoin;
      return;
    case Stage::kJoin:
      job_->progress_has_ended.await(1);
      stage_ = Stage::kBegin;
      return;
    case Stage::kBegin:
      return begin();
    case Stage::kRing:
      job_->own_doorbells.ring_self();
      stage_ = Stage::kTake;
      return;
    case Stage::kTake:
      return take();
    case Stage::kBlocked:
      is_awake.await(1);
      stage_ = Stage::kTake;
      return;
    case Stage::kWork:
      return work();
    case Stage::kRelease:
      job_->release();
      (stops_ ? job_->end_is_done : job_->claim_is_done).send(1);
      stage_ = Stage::kOver;
      return;
    case Stage::kOver:
      return;
  }
}

void Claim::await_others() {
  const bool at_any_time = !stops_ || job_->options().stops_at_any_time;
  const int callers = at_any_time ? 0 : job_->callers();
  if (awaited_ < callers) {
    job_->has_returned[static_cast<std::size_t>(awaited_++)].await(1);
    return;
  }
  if (!at_any_time && job_->options().claim && awaited_ == callers) {
    job_->claim_is_done.await(1);
    ++awaited_;
    return;
  }
  stage_ = stops_ ? Stage::kStop : Stage::kBegin;
}

void Claim::stop() {
  job_->run_guarded([](GuardedData& now) { now.lock.stop(); });
  stage_ = Stage::kWakeAll;
}

void Claim::begin() {
  const bool rings = job_->run_guarded([](GuardedData& now) {
    ++now.claims;
    return now.lock.begin_claim();
  });
  stage_ = rings && !job_->has(ProgressBug::kClaimWithoutBell) ? Stage::kRing : Stage::kTake;
}

void Claim::take() {
  const Ghost& is_awake = stops_ ? job_->stop_is_awake : job_->claim_is_awake;
  const bool is_ours = job_->run_guarded([&](GuardedData& now) {
    if (!now.lock.can_be_claimed()) {
      is_awake.set(0);
      return false;
    }
    now.lock.take_claimed();
    --now.claims;
    job_->record_holder(now, true);
    return true;
  });
  stage_ = is_ours ? Stage::kWork : Stage::kBlocked;
}

// stop() finishes all calls that are in flight.
void Claim::work() {
  if (stops_) {
    const auto in_flight = job_->run_guarded([&](GuardedData& now) {
      now.arrived = 0;
      return now.in_flight;
    });
    if (in_flight != 0) job_->publish(in_flight, false);
  }
  stage_ = Stage::kRelease;
}

void ProgressThread::write_key(ByteWriter& key) const {
  key.put(stage_);
  driver_.write_key(key);
}

void ProgressThread::run() {
  switch (stage_) {
    case Stage::kWait:
      return wait();
    case Stage::kBlocked:
      job_->progress_is_awake.await(1);
      stage_ = Stage::kWait;
      return;
    case Stage::kNap:
      return nap();
    case Stage::kDrive:
      if (!driver_.advance(nullptr)) stage_ = Stage::kLastRound;
      return;
    case Stage::kLastRound:
      driver_.run_round();
      stage_ = Stage::kRelease;
      return;
    case Stage::kRelease:
      job_->release();
      stage_ = Stage::kWait;
      return;
    case Stage::kOver:
      return;
  }
}

void ProgressThread::wait() {
  stage_ = job_->run_guarded([&](GuardedData& now) {
    if (now.lock.is_stopping() || now.lock.may_be_taken_in_background(now.has_work())) {
      now.lock.begin_nap();
      return Stage::kNap;
    }
    job_->progress_is_awake.set(0);
    return Stage::kBlocked;
  });
}

void ProgressThread::nap() {
  stage_ = job_->run_guarded([&](GuardedData& now) {
    if (now.lock.continue_nap(now.has_work())) return Stage::kNap;
    const bool is_ours = now.lock.end_nap(now.has_work());
    if (now.lock.is_stopping()) {
      job_->progress_has_ended.set(1);
      return Stage::kOver;
    }
    if (!is_ours) return Stage::kWait;
    job_->record_holder(now, false);
    require(job_->arena(), now.lock.waiters() == 0, "the thread goes before a caller");
    return Stage::kDrive;
  });
  if (stage_ == Stage::kDrive) driver_.begin(0);
}

void Peer::write_key(ByteWriter& key) const {
  key.put(next_);
  key.put(awaited_);
}

bool Peer::has_finished() const { return next_ == job_->callers(); }

void Peer::run() {
  using PeerWait = ProgressOptions::PeerWait;
  const int call = job_->callers() - 1 - next_;
  if (call == 0 && !awaited_) {
    awaited_ = true;
    if (job_->options().peer_waits_for == PeerWait::kClaim) job_->claim_is_done.await(1);
    if (job_->options().peer_waits_for == PeerWait::kEnd) job_->end_is_done.await(1);
    if (job_->options().peer_waits_for == PeerWait::kOtherCalls)
      for (std::size_t other = 1; other < job_->has_returned.size(); ++other)
        job_->has_returned[other].await(1);
    return;
  }
  job_->entered[static_cast<std::size_t>(call)]->store(1, std::memory_order_seq_cst);
  job_->peer_doorbells.ring(0);
  ++next_;
}

void Timer::write_key(ByteWriter& key) const {
  key.put(caller_);
  key.put(done_);
}

void Timer::run() {
  const auto caller = static_cast<std::size_t>(caller_);
  job_->time_is_over[caller].send(1);
  job_->caller_is_awake[caller].set(1);
  job_->own_doorbells.ring_self();
  done_ = true;
}

Scenario scenario_of(ProgressJob& job) {
  Scenario scenario;
  scenario.arena = &job.arena();
  const auto add = [&](std::string name, int member, std::unique_ptr<ModelThread> start) {
    scenario.threads.push_back(
        {.name = std::move(name), .member = member, .start = std::move(start)});
  };
  for (int caller = 0; caller < job.callers(); ++caller) {
    add("caller " + std::to_string(caller), 0, std::make_unique<Caller>(job, caller));
    if (job.options().callers[static_cast<std::size_t>(caller)] == CallerKind::kTimesOut)
      add("timer", 0, std::make_unique<Timer>(job, caller));
  }
  if (job.options().claim) add("claim", 0, std::make_unique<Claim>(job, false));
  add("stop", 0, std::make_unique<Claim>(job, true));
  add("progress", 0, std::make_unique<ProgressThread>(job));
  add("peer", 1, std::make_unique<Peer>(job));
  return scenario;
}

}  // namespace farandole::model
