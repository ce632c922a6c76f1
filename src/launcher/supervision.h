// Supervision: decides what to do when a worker ends or stops, or when the user sends a signal. It
// also finds the worker that failed first, and the exit code of the job. A pure state machine:
// events and the time go in, actions come out.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "diagnosis/failure_box.h"

namespace farandole {

// The actions to take now, in this order.
struct Actions {
  std::vector<std::string> notices;  // lines for the user
  std::optional<int> pass_signal;    // to the process group of every living worker
  bool kill_everything = false;      // SIGKILL to every process of the job
};

class Supervision {
 public:
  // After a failure the others have this long to end with an error of their own, which names the
  // failed rank. Then they get SIGTERM; after the next time SIGKILL; after the last one we give up.
  static constexpr auto kOwnErrorTime = std::chrono::seconds(2);
  static constexpr auto kTerminateTime = std::chrono::seconds(5);
  static constexpr auto kKillTime = std::chrono::seconds(10);
  // Children of workers that ended well have this long to end, and again after SIGTERM.
  static constexpr auto kLeftTime = std::chrono::seconds(2);
  // The same Ctrl-C may arrive twice: from the terminal and from a wrapper script.
  static constexpr auto kSameSignalTime = std::chrono::milliseconds(500);

  // `pids` by rank; all have been started. `grace`: from a passed signal to SIGKILL.
  Supervision(std::vector<pid_t> pids, std::chrono::seconds grace);

  Actions worker_ended(int rank, WorkerEnd end);
  // A worker was stopped by this signal, or runs again. Not to be called for stops that we have
  // passed on ourselves.
  Actions worker_stopped(int rank, int signal);
  Actions worker_continued(int rank);
  // A signal that asks the job to end: SIGINT, SIGTERM, SIGHUP, SIGQUIT; SIGPIPE if our output has
  // no reader any more.
  Actions signal_received(int signal, TimePoint now);
  Actions time_passed(TimePoint now);

  // When time_passed() must be called.
  std::optional<TimePoint> deadline() const { return deadline_; }
  // All workers have ended, or the kernel cannot end them.
  bool finished() const { return living_ == 0 || state_ == State::kGivenUp; }
  // A worker has failed, or a signal has asked the job to end.
  bool is_ending() const { return state_ != State::kRunning; }
  bool lives(int rank) const;
  // Nothing while it lives.
  std::optional<ProcessEnd> end_of(int rank) const;
  // The signal that has stopped a living worker; 0 when it runs.
  int stopped_by(int rank) const;

  // That of the worker that caused the failure. If that one ended well, or we have ended it: that
  // of the first worker that failed. Without a failure 128 + the signal that ended the job, else 0.
  int exit_code() const;
  // Once finished: the facts of a failure, for the user. Nothing if no worker failed before a
  // signal asked the job to end.
  std::optional<Failure> failure() const;
  // Once finished: the end of a job that a signal has ended; empty after a failure or success.
  std::vector<std::string> closing_lines() const;

 private:
  enum class State { kRunning, kOwnErrors, kTerminating, kSignalled, kKilling, kGivenUp };
  struct Worker {
    pid_t pid = 0;
    std::optional<WorkerEnd> end{};
    int our_signal = 0;  // the last one that it got from us or through us before it ended
    TimePoint first_signal_time{};  // when it got the first of them
    int stopped_by = 0;
  };

  void enter(State state, std::optional<TimePoint> deadline);
  Actions terminate(int signal, TimePoint now);
  Actions kill(TimePoint now, std::vector<std::string> notices);
  void remember_signal(int signal, TimePoint now);
  std::string living_ranks() const;
  std::string name(int rank) const;
  static std::string fate_of(const Worker& worker);
  std::string the_others(int but) const;
  const Worker& worker(int rank) const { return workers_.at(static_cast<std::size_t>(rank)); }
  static bool may_be_a_cause(const Worker& worker);
  static bool is_its_own_cause(const Worker& worker);
  std::optional<int> cause_of(int rank) const;
  int first_cause() const;

  std::vector<Worker> workers_;
  std::chrono::seconds grace_;
  State state_ = State::kRunning;
  std::optional<TimePoint> deadline_;
  std::size_t living_;
  std::vector<int> ended_;            // ranks in the order of their ends
  std::optional<int> first_failure_;  // a rank
  int ending_signal_ = 0;
  TimePoint last_signal_time_{};
};

}  // namespace farandole
