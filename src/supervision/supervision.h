// Supervision: decides what to do when a worker ends or stops, or when the user sends a signal. It
// also determines which worker failed first, and the exit code of the job. It is a pure state
// machine: its functions take events and the time, and return actions.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "diagnosis/failure_box.h"
#include "nodes/node_messages.h"
#include "supervision/signal_repeats.h"

namespace farandole {

// The actions to take now, in this order.
struct Actions {
  std::vector<std::string> notices;   // lines to show to the user
  std::optional<int> forward_signal;  // the signal for the process group of every living worker
  bool kill_everything = false;       // SIGKILL to every process of the job
};

class Supervision {
 public:
  // After a failure, the other workers have kOwnErrorTime to end with an error that names the
  // failed rank. Then they get SIGTERM, and after kTerminateTime SIGKILL. After kKillTime we give
  // up.
  static constexpr auto kOwnErrorTime = std::chrono::seconds(5);
  static constexpr auto kTerminateTime = std::chrono::seconds(5);
  static constexpr auto kKillTime = std::chrono::seconds(10);
  // After all workers have succeeded, the processes that they have left behind have this time to
  // end. Then they get SIGTERM and, after the same time again, SIGKILL.
  static constexpr auto kLeftoverTime = std::chrono::seconds(2);

  // `pids` are the process ids by local rank; 0: the worker of an elastic job has not started yet.
  // `grace` is the time from a forwarded signal to SIGKILL. `first_rank` is the rank of the first
  // worker. All functions take local ranks; the texts and failure() have ranks of the job.
  Supervision(std::vector<pid_t> pids, std::chrono::seconds grace, int first_rank = 0);

  // `is_needed` is false if the job does not need this worker because the worker was not a member
  // of the job's group.
  Actions worker_ended(int local_rank, WorkerEnd end, bool is_needed = true);

  // The next seven functions are for elastic jobs. In an elastic job, a failed worker does not end
  // the job, and the job waits for new workers even if this node has no worker left.
  void set_elastic() { is_elastic_ = expects_workers_ = true; }
  void no_more_workers() { expects_workers_ = false; }
  // Call it when a new worker runs in place of one that has ended.
  void worker_started(int local_rank, pid_t pid);
  // Call it when the other workers go on without those that have failed.
  void failures_survived();
  // Ends a job that cannot go on. `why` is for the user.
  Actions end_elastic_job(const std::string& why, TimePoint now);
  // Call it before the workers are told to end after their next commit. Workers that still run
  // after the time `limit` are killed. Does nothing if the job is already ending, unless it ends
  // because another node has failed.
  Actions end_at_next_commit(const std::string& why, Duration limit, TimePoint now);
  bool ends_at_next_commit() const { return state_ == State::kLastStep; }

  // Call worker_stopped() when a signal has stopped a worker, and worker_continued() when the
  // worker runs again. Do not call worker_stopped() for a stop that the user requested for the
  // whole job.
  Actions worker_stopped(int local_rank, int signal);
  Actions worker_continued(int local_rank);
  // Call it for a signal that asks the job to end: SIGINT, SIGTERM, SIGHUP or SIGQUIT. Call it with
  // SIGPIPE if our output has no reader any more. SIGPIPE may come again and again, and never
  // counts as the second signal, which kills the workers. A repeat (signal_repeats.h) does not
  // count, either.
  Actions signal_received(int signal, TimePoint now);
  // Call it when the part of the job on another node fails; `why` names that node. The failure that
  // is the cause may be reported after the failures that it causes, because the connections of a
  // process break before its launcher sees that the process has ended. So the ranks that the
  // failures blame determine which node has failed first.
  Actions other_node_failed(const NodeFailure& failure, TimePoint now);
  Actions handle_deadline(TimePoint now);

  // When to call handle_deadline().
  std::optional<TimePoint> deadline() const { return deadline_; }
  // Whether this launcher waits for no worker any more: all workers have ended and none will be
  // started, or the workers that are left cannot be killed.
  bool is_finished() const {
    const bool may_start = expects_workers_ && !is_ending();
    return (living_count_ == 0 && !may_start) || state_ == State::kGivenUp;
  }
  // Whether a worker has failed or a signal has asked the job to end.
  bool is_ending() const { return state_ != State::kRunning; }
  bool is_alive(int local_rank) const;
  // How a worker has ended; empty while it runs.
  std::optional<ProcessEnd> end_of(int local_rank) const;
  // The signal that has stopped a worker; 0 if it runs or has ended.
  int stop_signal(int local_rank) const;

  // Returns the exit code of the job. It is the exit code of the worker that caused the failure. If
  // this worker exited with code 0, or if we have ended it, the code is that of the first worker
  // that failed. Without a failure, the code is 128 + the signal that ended the job, or 0.
  //
  // If another node failed first, and a worker was the cause, the code is 1. If no worker was the
  // cause, the code is 128 + the signal that arrived here afterwards. If none arrived, it is 128 +
  // the signal that ended the other node, or 1 without such a signal. But in an elastic job, a
  // failure of a worker of this node counts instead.
  //
  // If the workers were told to end after their next commit and have done so, the code is
  // kEndedEarlyExitCode.
  int exit_code() const;
  // The facts of the failure, for the user. Call it when is_finished(). Empty if no worker failed
  // before a signal asked the job to end.
  std::optional<Failure> failure() const;
  // Why this node's part of the job ends or has ended; empty if it runs, if it has succeeded, or if
  // another node has failed first.
  std::optional<NodeFailure> own_failure() const;
  // This node's failure if `signal` has asked the job to end.
  NodeFailure failure_by_signal(int signal) const;
  // Whether this node has failed by itself. In an elastic job, only the failure of a worker counts,
  // and not the decision to end the job.
  bool has_failed_itself() const {
    return is_elastic_ ? failure().has_value() : own_failure().has_value();
  }
  // Lines about a job that a signal or another node has ended, otherwise empty. Call it when
  // is_finished().
  std::vector<std::string> closing_lines() const;

 private:
  enum class State {
    kRunning,
    kLastStep,
    kOwnErrors,
    kTerminating,
    kSignalled,
    kKilling,
    kGivenUp
  };
  struct Worker {
    pid_t pid = 0;  // 0: the worker has not started yet
    std::optional<WorkerEnd> end{};
    int our_signal = 0;             // the last signal from this launcher before the worker ended
    TimePoint first_signal_time{};  // when the worker got the first such signal
    int stop_signal = 0;
    bool is_alive() const { return pid != 0 && !end; }
  };

  // Whether the workers have got a signal that ends them.
  bool has_signalled() const {
    return state_ != State::kRunning && state_ != State::kLastStep && state_ != State::kOwnErrors;
  }
  void enter_state(State state, std::optional<TimePoint> deadline);
  Actions terminate(int signal, TimePoint now);
  Actions kill_all(TimePoint now, std::vector<std::string> notices);
  void remember_signal(int signal, TimePoint now);
  std::string living_ranks() const;
  std::string name(int local_rank) const;
  static std::string text_about_end(const Worker& worker);
  std::string text_about_others(int excluded) const;
  const Worker& worker(int local_rank) const {
    return workers_.at(static_cast<std::size_t>(local_rank));
  }
  static bool may_be_cause(const Worker& worker);
  static bool is_root_cause(const Worker& worker);
  std::optional<std::uint32_t> blamed_rank_elsewhere(int local_rank) const;
  std::optional<int> living_worker_blamed_by(int local_rank) const;
  bool has_caused_other_failure(int local_rank) const;
  std::optional<int> cause_of(int local_rank) const;
  int first_cause() const;
  int exit_code_after_last_step() const;

  std::vector<Worker> workers_;
  std::chrono::seconds grace_;
  int first_rank_;
  State state_ = State::kRunning;
  std::optional<TimePoint> deadline_;
  std::size_t living_count_;
  std::vector<int> ended_ranks_;  // in the order in which they ended
  std::optional<int> first_failed_rank_;
  bool is_elastic_ = false;
  bool expects_workers_ = false;
  // The first failure, if a new worker has replaced the failed worker, but the other workers have
  // not gone on yet.
  std::optional<Failure> unsurvived_failure_{};
  std::string why_it_ends_;     // only used in an elastic job
  bool has_last_step_ = false;  // end_at_next_commit() was called
  int ending_signal_ = 0;
  std::optional<NodeFailure> other_failure_;  // another node's failure, if it was the first
  SignalRepeats repeats_{};
};

}  // namespace farandole
