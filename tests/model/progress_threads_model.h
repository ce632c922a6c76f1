// The threads of a progress job. Each thread does what engine/progress_threads.cc and loop.cc do
// around the shipped decisions. From one checkpoint to the next, it runs about one critical section
// or one call of the doorbells.
#pragma once

#include <cstdint>

#include "automaton.h"
#include "progress_job.h"
#include "scenario.h"

namespace farandole::model {

// Mirrors Loop::drive(): the holder of the progress lock runs rounds and sleeps between them. It
// ends when its calls are finished, its time limit is over, or it must release the lock.
class Driver {
 public:
  explicit Driver(ProgressJob& job) : job_(&job) {}

  void write_key(ByteWriter& key) const;
  // `wanted`: the calls for which the holder waits; 0 for the thread "progress".
  void begin(ProgressJob::Bits wanted);
  // Goes on to the next checkpoint. Returns false at the end. `time` becomes 1 when the holder's
  // time limit is over; it is null if the holder has no limit.
  bool advance(const Ghost* time);
  // Runs one round, without sleeping. Returns true if the round took new calls or finished a call.
  bool run_round();

 private:
  enum class Stage : std::uint8_t { kPrepare, kRound, kCheckRelease, kSleep, kOver };

  bool wanted_is_done() const;

  ProgressJob* job_;  // borrowed
  ProgressJob::Bits wanted_ = 0;
  Stage stage_ = Stage::kPrepare;
  std::uint32_t ticket_ = 0;
};

class Caller final : public CopiedThread<Caller> {
 public:
  Caller(ProgressJob& job, int number);
  void write_key(ByteWriter& key) const override;
  bool has_finished() const override { return stage_ == Stage::kOver; }
  void run() override;

 private:
  enum class Stage : std::uint8_t {
    kSubmit,
    kRing,
    kRoundOnce,
    kRelease,
    kArrive,
    kRingForHandOver,
    kDrive,
    kWaitFor,
    kBlocked,
    kPoll,
    kReturn,
    kOver
  };

  ProgressJob::Bits call() const { return ProgressJob::Bits{1} << number_; }
  bool is(CallerKind kind) const;
  bool waits_at_once() const;
  void submit();
  void after_submit();
  void arrive();
  void wait_for();

  ProgressJob* job_;  // borrowed
  int number_;
  Stage stage_ = Stage::kSubmit;
  bool is_holder_ = false;
  Driver driver_;
};

// A thread that takes the lock by a claim, to change the groups or to end the engine.
class Claim final : public CopiedThread<Claim> {
 public:
  Claim(ProgressJob& job, bool stops) : job_(&job), stops_(stops) {}
  void write_key(ByteWriter& key) const override;
  bool has_finished() const override { return stage_ == Stage::kOver; }
  void run() override;

 private:
  enum class Stage : std::uint8_t {
    kAwaitOthers,
    kStop,
    kWakeAll,
    kRingForStop,
    kJoin,
    kBegin,
    kRing,
    kTake,
    kBlocked,
    kWork,
    kRelease,
    kOver
  };

  void await_others();
  void stop();
  void begin();
  void take();
  void work();

  ProgressJob* job_;  // borrowed
  bool stops_;
  Stage stage_ = Stage::kAwaitOthers;
  int awaited_ = 0;
};

// The thread "progress". Its nap may end at any time.
class ProgressThread final : public CopiedThread<ProgressThread> {
 public:
  explicit ProgressThread(ProgressJob& job) : job_(&job), driver_(job) {}
  void write_key(ByteWriter& key) const override;
  bool has_finished() const override { return stage_ == Stage::kOver; }
  void run() override;

 private:
  enum class Stage : std::uint8_t { kWait, kBlocked, kNap, kDrive, kLastRound, kRelease, kOver };

  void wait();
  void nap();

  ProgressJob* job_;  // borrowed
  Stage stage_ = Stage::kWait;
  Driver driver_;
};

// Another rank. It enters the callers' calls in reverse order: first the call of the last caller.
// Before the call of caller 0, it waits for what the options say.
class Peer final : public CopiedThread<Peer> {
 public:
  explicit Peer(ProgressJob& job) : job_(&job) {}
  void write_key(ByteWriter& key) const override;
  bool has_finished() const override;
  void run() override;

 private:
  ProgressJob* job_;  // borrowed
  int next_ = 0;      // how many calls the peer has entered; it enters call 0 last
  bool awaited_ = false;
};

// Lets the time limit of a caller expire, at any time.
class Timer final : public CopiedThread<Timer> {
 public:
  Timer(ProgressJob& job, int caller) : job_(&job), caller_(caller) {}
  void write_key(ByteWriter& key) const override;
  bool has_finished() const override { return done_; }
  void run() override;

 private:
  ProgressJob* job_;  // borrowed
  int caller_;
  bool done_ = false;
};

// All threads of the job.
Scenario scenario_of(ProgressJob& job);

}  // namespace farandole::model
