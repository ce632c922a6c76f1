// Supervision: what to do when a worker ends or the user sends a signal, and what the job's exit
// code is. A pure state machine: events and the time go in, deeds come out.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace farandole {

// How a process ended: by exit(code), or by a signal (then `signal` is not 0).
struct ProcessEnd {
  int code = 0;
  int signal = 0;

  bool failed() const { return code != 0 || signal != 0; }
  // As shells count: 128 + signal.
  int exit_code() const { return signal != 0 ? 128 + signal : code; }
};

// "SIGTERM"; "signal 99" for one without a name.
std::string signal_name(int signal);

// What is to be done now, in this order.
struct Deeds {
  std::vector<std::string> notices;  // lines for the user
  std::optional<int> pass_signal;    // to the process group of every living worker
  bool kill_everything = false;      // SIGKILL to whatever the job has started
};

class Supervision {
 public:
  // After a failure the others get this long to end with an error of their own, which names the
  // culprit; then SIGTERM, then SIGKILL.
  static constexpr auto kOwnErrorTime = std::chrono::seconds(2);
  static constexpr auto kTerminateTime = std::chrono::seconds(5);
  static constexpr auto kKillTime = std::chrono::seconds(10);
  // What workers that ended well have left gets this long to end, and again after SIGTERM.
  static constexpr auto kLeftTime = std::chrono::seconds(2);
  // One Ctrl-C may arrive twice, from the terminal and from a wrapper.
  static constexpr auto kSameSignalTime = std::chrono::milliseconds(500);

  // `pids` by rank; all have been started. `grace`: from a passed signal to SIGKILL.
  Supervision(std::vector<pid_t> pids, std::chrono::seconds grace);

  Deeds worker_ended(int rank, ProcessEnd end, TimePoint now);
  // A signal that asks the job to end: SIGINT, SIGTERM, SIGHUP, SIGQUIT; SIGPIPE when nobody reads
  // the output any more.
  Deeds signal_received(int signal, TimePoint now);
  Deeds time_passed(TimePoint now);

  // When time_passed() wants to be called.
  std::optional<TimePoint> deadline() const { return deadline_; }
  // All workers have ended, or cannot be made to.
  bool finished() const { return living_ == 0 || state_ == State::kGivenUp; }
  bool lives(int rank) const;

  // The first failure's, else that of the signal that ended the job, else 0.
  int exit_code() const;
  // The first failure is a SIGKILL that did not come from us; often the kernel is short of memory.
  bool killed_by_somebody() const;
  // What happened, cause first; empty after a success.
  std::vector<std::string> closing_lines() const;

 private:
  enum class State { kRunning, kOwnErrors, kTerminating, kSignalled, kKilling, kGivenUp };
  struct Worker {
    pid_t pid = 0;
    std::optional<ProcessEnd> end;
    int our_signal = 0;  // the last one that it got from us or through us before it ended
  };

  void enter(State state, std::optional<TimePoint> deadline);
  Deeds terminate(int signal, TimePoint now);
  Deeds kill(TimePoint now, std::vector<std::string> notices);
  void remember_signal(int signal);
  std::string living_ranks() const;
  std::string describe(int rank) const;
  static std::string fate_of(const Worker& worker);
  std::string the_others(int but) const;

  std::vector<Worker> workers_;
  std::chrono::seconds grace_;
  State state_ = State::kRunning;
  std::optional<TimePoint> deadline_;
  std::size_t living_;
  std::optional<int> first_failure_;  // a rank
  int ending_signal_ = 0;
  TimePoint last_signal_time_{};
};

}  // namespace farandole
