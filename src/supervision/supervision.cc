#include "supervision/supervision.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/rank_names.h"
#include "rendezvous/launcher_notice.h"

namespace farandole {
namespace {

bool failed_in_init(const FlightReport& record) {
  return record.member_state == MemberState::kForming ||
         (record.member_state == MemberState::kLeft && record.groups.empty());
}

}  // namespace

Supervision::Supervision(std::vector<pid_t> pids, std::chrono::seconds grace, int first_rank)
    : grace_(grace),
      first_rank_(first_rank),
      living_count_(pids.size() - static_cast<std::size_t>(std::ranges::count(pids, 0))) {
  for (const pid_t pid : pids) workers_.push_back({.pid = pid});
}

bool Supervision::is_alive(int local_rank) const { return worker(local_rank).is_alive(); }

std::optional<ProcessEnd> Supervision::end_of(int local_rank) const {
  const auto& end = worker(local_rank).end;
  return end ? std::optional(end->process_end) : std::nullopt;
}

int Supervision::stop_signal(int local_rank) const {
  return is_alive(local_rank) ? worker(local_rank).stop_signal : 0;
}

void Supervision::enter_state(State state, std::optional<TimePoint> deadline) {
  state_ = state;
  deadline_ = deadline;
}

Actions Supervision::worker_ended(int local_rank, WorkerEnd end, bool is_needed) {
  Worker& worker = workers_.at(static_cast<std::size_t>(local_rank));
  CHECK(!worker.end, "a worker ends once");
  const bool failed = is_needed && end.process_end.failed();
  const TimePoint now = end.at;
  worker.end = std::move(end);
  if (is_needed) ended_ranks_.push_back(local_rank);
  --living_count_;
  if (living_count_ == 0) deadline_.reset();
  if (!failed) return {};
  if (state_ == State::kRunning) {
    if (!first_failed_rank_) first_failed_rank_ = local_rank;
    if (living_count_ > 0 && !is_elastic_) enter_state(State::kOwnErrors, now + kOwnErrorTime);
  } else if (has_caused_other_failure(local_rank)) {
    first_failed_rank_ = local_rank;
    other_failure_.reset();
  }
  return {};
}

void Supervision::worker_started(int local_rank, pid_t pid) {
  if (first_failed_rank_ == local_rank) {
    if (!unsurvived_failure_) unsurvived_failure_ = failure();
    first_failed_rank_.reset();
  }
  workers_.at(static_cast<std::size_t>(local_rank)) = {.pid = pid};
  ++living_count_;
  std::erase(ended_ranks_, local_rank);
}

void Supervision::failures_survived() {
  if (state_ != State::kRunning) return;
  first_failed_rank_.reset();
  unsurvived_failure_.reset();
  std::erase_if(ended_ranks_, [this](int local_rank) { return !is_alive(local_rank); });
}

Actions Supervision::end_elastic_job(const std::string& why, TimePoint now) {
  if (state_ != State::kRunning || is_finished()) return {};
  why_it_ends_ = why;
  enter_state(State::kOwnErrors, now + kOwnErrorTime);
  return {{"the job ends: " + why}, std::nullopt, false};
}

Actions Supervision::end_at_next_commit(const std::string& why, Duration limit, TimePoint now) {
  if ((state_ != State::kRunning && state_ != State::kOwnErrors) || is_finished()) return {};
  why_it_ends_ = why;
  has_last_step_ = true;
  other_failure_.reset();
  enter_state(State::kLastStep, now + limit);
  return {{"the job ends after the next commit, within " +
           std::to_string(std::chrono::ceil<std::chrono::seconds>(limit).count()) + " s: " + why},
          std::nullopt,
          false};
}

Actions Supervision::worker_stopped(int local_rank, int signal) {
  Worker& worker = workers_.at(static_cast<std::size_t>(local_rank));
  worker.stop_signal = signal;
  Actions actions;
  actions.notices.push_back(name(local_rank) + " is stopped (" + signal_name(signal) +
                            "); `kill -CONT " + std::to_string(worker.pid) + "` lets it go on");
  return actions;
}

Actions Supervision::worker_continued(int local_rank) {
  Worker& worker = workers_.at(static_cast<std::size_t>(local_rank));
  if (std::exchange(worker.stop_signal, 0) == 0) return {};
  Actions actions;
  // Show nothing if this launcher has sent the worker a signal to end it: then the launcher itself
  // has continued the worker.
  if (worker.our_signal == 0) actions.notices.push_back(name(local_rank) + " goes on");
  return actions;
}

Actions Supervision::signal_received(int signal, TimePoint now) {
  // SIGPIPE comes again and again while our output has no reader. So a repeated SIGPIPE does not
  // mean that the user has sent a second signal.
  if (signal == SIGPIPE && has_signalled()) return {};
  if (repeats_.is_repeat(signal, now) || is_finished()) return {};
  // If the user sends a signal to all nodes, another node may report the signal before this
  // launcher gets it. In this case, this launcher sent the signal to its workers when the report
  // arrived.
  if (state_ == State::kSignalled && ending_signal_ == 0) {
    ending_signal_ = signal;
    return {};
  }
  switch (state_) {
    case State::kRunning: {
      ending_signal_ = signal;
      enter_state(State::kSignalled, now + grace_);
      remember_signal(signal == SIGPIPE ? SIGTERM : signal, now);
      Actions actions;
      if (signal == SIGPIPE)
        actions.notices.push_back("nobody reads the output any more; ending the job");
      else
        actions.notices.push_back(
            signal_name(signal) + " passed on to " +
            (living_count_ > 0 ? living_ranks() : "all hosts") + "; workers that are left after " +
            std::to_string(grace_.count()) + " s are killed; a second signal kills at once");
      actions.forward_signal = signal == SIGPIPE ? SIGTERM : signal;
      return actions;
    }
    case State::kLastStep:
    case State::kOwnErrors:
      ending_signal_ = signal;
      return terminate(signal == SIGPIPE ? SIGTERM : signal, now);
    case State::kTerminating:
    case State::kSignalled:
      return kill_all(now,
                      {"a second signal (" + signal_name(signal) + "); killing " + living_ranks()});
    case State::kKilling:
    case State::kGivenUp:
      return {};
  }
  return {};
}

// After the failure, the engine's errors usually end the workers. The deadline is for programs that
// do not use the engine.
Actions Supervision::other_node_failed(const NodeFailure& failure, TimePoint now) {
  const auto failure_here = own_failure();
  const bool has_caused_ours = failure_here && failure.has_caused(*failure_here);
  const bool is_cause = has_caused_ours || (other_failure_ && failure.has_caused(*other_failure_));
  const bool is_first = state_ == State::kRunning && !is_finished();
  if (has_caused_ours) first_failed_rank_.reset();
  if (is_cause || is_first) other_failure_ = failure;
  // A worker may have failed because of the signal before the signal was reported. Then the other
  // workers still get the signal and the grace time.
  const bool may_signal = is_first || (is_cause && state_ == State::kOwnErrors && !is_finished());
  if (failure.signal != 0 && may_signal) {
    const int signal = static_cast<int>(failure.signal);
    enter_state(State::kSignalled, now + grace_);
    remember_signal(signal, now);
    return {{failure.why +
             "; the workers of this node get the signal, too; those that are left "
             "after " +
             std::to_string(grace_.count()) + " s are killed"},
            signal,
            false};
  }
  if (!is_first) return {};
  enter_state(State::kOwnErrors, now + kOwnErrorTime);
  return {{failure.why + "; the workers of this node end, too"}, std::nullopt, false};
}

Actions Supervision::handle_deadline(TimePoint now) {
  if (!deadline_ || now < *deadline_) return {};
  switch (state_) {
    case State::kOwnErrors:
      return terminate(SIGTERM, now);
    case State::kLastStep:
      return kill_all(now, {living_ranks() + " did not end in time; killing"});
    case State::kTerminating:
      return kill_all(now, {living_ranks() + " did not end after SIGTERM; killing"});
    case State::kSignalled:
      return kill_all(now, {living_ranks() + " did not end within " +
                            std::to_string(grace_.count()) + " s; killing"});
    case State::kKilling: {
      Actions actions;
      actions.notices.push_back(
          living_ranks() +
          " cannot be killed (stuck in the kernel, or owned by another user); "
          "giving up");
      enter_state(State::kGivenUp, std::nullopt);
      return actions;
    }
    case State::kRunning:
    case State::kGivenUp:
      break;
  }
  return {};
}

Actions Supervision::terminate(int signal, TimePoint now) {
  Actions actions;
  if (first_failed_rank_) {
    const ProcessEnd& process_end = worker(*first_failed_rank_).end->process_end;
    actions.notices.push_back(name(*first_failed_rank_) +
                              (process_end.signal != 0 ? " was " : " ") + describe(process_end) +
                              "; ending " + living_ranks() + " with " + signal_name(signal));
  }
  actions.forward_signal = signal;
  remember_signal(signal, now);
  enter_state(State::kTerminating, now + kTerminateTime);
  return actions;
}

Actions Supervision::kill_all(TimePoint now, std::vector<std::string> notices) {
  Actions actions{std::move(notices), std::nullopt, true};
  remember_signal(SIGKILL, now);
  enter_state(State::kKilling, now + kKillTime);
  return actions;
}

void Supervision::remember_signal(int signal, TimePoint now) {
  for (auto& worker : workers_) {
    if (!worker.is_alive()) continue;
    if (worker.our_signal == 0) worker.first_signal_time = now;
    worker.our_signal = signal;
  }
}

std::string Supervision::living_ranks() const {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (workers_[i].is_alive()) ranks.push_back(first_rank_ + static_cast<int>(i));
  return ranks_text(ranks);
}

std::string Supervision::name(int local_rank) const {
  return (is_elastic_ ? "worker " : "rank ") + std::to_string(first_rank_ + local_rank) + " (pid " +
         std::to_string(worker(local_rank).pid) + ")";
}

// A worker that we have ended is not a cause of the failure, unless it had left the job before we
// ended it.
bool Supervision::may_be_cause(const Worker& worker) {
  if (!worker.end) return false;
  const FlightReport& record = worker.end->record;
  return worker.our_signal == 0 ||
         (record.member_state == MemberState::kLeft && record.since < worker.first_signal_time);
}

// Whether no other worker has caused the failure: a signal from outside has killed this worker, or
// its own program has raised an exception.
bool Supervision::is_root_cause(const Worker& worker) {
  const FlightReport& record = worker.end->record;
  if (worker.end->process_end.signal != 0 && worker.our_signal == 0) return true;
  return record.cause == LeaveCause::kException;
}

// Returns the rank that made this worker fail, if this rank is on another node. Empty if it is on
// this node, if the worker blames no rank, or if the worker is a root cause itself.
std::optional<std::uint32_t> Supervision::blamed_rank_elsewhere(int local_rank) const {
  const auto blamed = worker(local_rank).end->record.blamed_rank;
  if (!blamed || *blamed < 0 || is_root_cause(worker(local_rank))) return std::nullopt;
  const bool is_on_this_node =
      *blamed >= first_rank_ && *blamed < first_rank_ + static_cast<int>(workers_.size());
  return is_on_this_node ? std::nullopt : std::optional(static_cast<std::uint32_t>(*blamed));
}

// Returns the worker of this node that has made `local_rank` fail by leaving the job, if this
// worker still runs. A process first leaves the job and then ends. So other workers, which fail
// because it has left, may end before this process ends.
std::optional<int> Supervision::living_worker_blamed_by(int local_rank) const {
  const auto blamed = worker(local_rank).end->record.blamed_rank;
  if (!blamed || is_root_cause(worker(local_rank))) return std::nullopt;
  const int blamed_local_rank = *blamed - first_rank_;
  if (blamed_local_rank < 0 || blamed_local_rank >= static_cast<int>(workers_.size()) ||
      !worker(blamed_local_rank).is_alive())
    return std::nullopt;
  return blamed_local_rank;
}

// Whether this worker's failure has caused the failure of another node that was reported earlier.
bool Supervision::has_caused_other_failure(int local_rank) const {
  return other_failure_ && may_be_cause(worker(local_rank)) &&
         other_failure_->blamed_rank == static_cast<std::uint32_t>(first_rank_ + local_rank) &&
         !blamed_rank_elsewhere(local_rank);
}

// Returns the worker that made this worker fail; empty if no worker of this node did. If this
// worker failed in init() and blames no rank, the cause is the worker that ended first, because the
// launcher reports the first end to the ranks in init().
std::optional<int> Supervision::cause_of(int local_rank) const {
  const FlightReport& record = worker(local_rank).end->record;
  if (is_root_cause(worker(local_rank))) return std::nullopt;
  std::optional<int> cause = record.blamed_rank;
  if (cause) *cause -= first_rank_;  // a rank of another node is outside the range of workers_
  if (!cause && failed_in_init(record)) cause = ended_ranks_.front();
  if (!cause || *cause == local_rank || *cause < 0 || *cause >= static_cast<int>(workers_.size()))
    return std::nullopt;
  return may_be_cause(worker(*cause)) ? cause : std::nullopt;
}

// Follows the blame from the first failed rank to the end of the chain. The rank at the end may
// have ended later than the ranks that blame it, and may have ended successfully. If the chain is a
// circle, the cause is the rank of the circle that ended first.
int Supervision::first_cause() const {
  std::vector<int> path{*first_failed_rank_};
  for (;;) {
    const auto next = cause_of(path.back());
    if (!next) return path.back();
    const auto visited = std::ranges::find(path, *next);
    if (visited != path.end())
      return *std::ranges::find_if(ended_ranks_, [&](int local_rank) {
        return std::find(visited, path.end(), local_rank) != path.end();
      });
    path.push_back(*next);
  }
}

int Supervision::exit_code() const {
  const bool failed_itself =
      unsurvived_failure_ || (first_failed_rank_ && worker(first_cause()).our_signal == 0);
  // In an elastic job, the other node is node 0, which has only decided that the job ends.
  if (other_failure_ && !(is_elastic_ && failed_itself)) {
    const int signal =
        ending_signal_ != 0 ? ending_signal_ : static_cast<int>(other_failure_->signal);
    return signal != 0 && !other_failure_->is_root_cause() ? 128 + signal : 1;
  }
  if (unsurvived_failure_) return unsurvived_failure_->exit_code;
  if (!first_failed_rank_) {
    if (ending_signal_ != 0) return 128 + ending_signal_;
    return has_last_step_ ? exit_code_after_last_step() : why_it_ends_.empty() ? 0 : 1;
  }
  const Worker& cause = worker(first_cause());
  const bool cause_has_failed = cause.our_signal == 0 && cause.end->process_end.failed();
  return (cause_has_failed ? cause : worker(*first_failed_rank_)).end->process_end.exit_code();
}

// Returns the exit code after a request to end at the next commit. It is 0 if the workers of this
// node have finished the training in the last step.
int Supervision::exit_code_after_last_step() const {
  int job_exit_code = 0;
  for (const Worker& worker : workers_) {
    if (worker.pid == 0) continue;
    const int worker_exit_code = worker.end ? worker.end->process_end.exit_code() : 1;
    if (worker_exit_code != 0 && worker_exit_code != kEndedEarlyExitCode) return 1;
    job_exit_code = std::max(job_exit_code, worker_exit_code);
  }
  return job_exit_code;
}

std::string Supervision::text_about_end(const Worker& worker) {
  if (!worker.end) return "still there";
  const ProcessEnd& process_end = worker.end->process_end;
  if (process_end.signal != 0 && process_end.signal == worker.our_signal)
    return "ended with " + signal_name(worker.our_signal);
  return describe(process_end);
}

// Returns how all workers except `excluded` have ended, in one line, with one part per kind of end.
std::string Supervision::text_about_others(int excluded) const {
  std::vector<std::pair<std::string, std::vector<int>>> ends;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (static_cast<int>(i) == excluded || workers_[i].pid == 0) continue;
    const std::string text = text_about_end(workers_[i]);
    auto same_end = std::find_if(ends.begin(), ends.end(),
                                 [&](const auto& entry) { return entry.first == text; });
    if (same_end == ends.end()) same_end = ends.insert(ends.end(), {text, {}});
    same_end->second.push_back(first_rank_ + static_cast<int>(i));
  }
  std::string line;
  for (const auto& [text, ranks] : ends)
    line += (line.empty() ? "" : "; ") + ranks_text(ranks) + ": " + text;
  return line;
}

std::optional<Failure> Supervision::failure() const {
  if (unsurvived_failure_) {
    Failure failure = *unsurvived_failure_;
    failure.other_ends = text_about_others(failure.rank - first_rank_);
    return failure;
  }
  if (!first_failed_rank_) return std::nullopt;
  const int local_rank = first_cause();
  const Worker& cause = worker(local_rank);
  return Failure{.rank = first_rank_ + local_rank,
                 .pid = cause.pid,
                 .end = *cause.end,
                 .ended_by_launcher =
                     cause.our_signal != 0 && cause.end->process_end.signal == cause.our_signal,
                 .exit_code = exit_code(),
                 .other_ends = text_about_others(local_rank)};
}

std::optional<NodeFailure> Supervision::own_failure() const {
  if (other_failure_ || (is_elastic_ && !is_ending() && !is_finished())) return std::nullopt;
  if (first_failed_rank_) {
    const ProcessEnd& process_end = worker(*first_failed_rank_).end->process_end;
    const int cause = first_cause();
    return NodeFailure{.why = name(*first_failed_rank_) +
                              (process_end.signal != 0 ? " was " : " has ") + describe(process_end),
                       .rank = static_cast<std::uint32_t>(
                           first_rank_ + living_worker_blamed_by(cause).value_or(cause)),
                       .blamed_rank = blamed_rank_elsewhere(cause),
                       .first_rank = static_cast<std::uint32_t>(first_rank_),
                       .ranks = static_cast<std::uint32_t>(workers_.size())};
  }
  if (!why_it_ends_.empty()) return NodeFailure{.why = why_it_ends_};
  if (ending_signal_ == 0) return std::nullopt;
  return failure_by_signal(ending_signal_);
}

NodeFailure Supervision::failure_by_signal(int signal) const {
  return {.why = signal_name(signal) + " has ended it",
          .signal = static_cast<std::uint32_t>(signal == SIGPIPE ? SIGTERM : signal),
          .first_rank = static_cast<std::uint32_t>(first_rank_),
          .ranks = static_cast<std::uint32_t>(workers_.size())};
}

std::vector<std::string> Supervision::closing_lines() const {
  const auto with_others = [this](std::string line) {
    std::vector<std::string> lines{std::move(line)};
    if (std::string others = text_about_others(-1); !others.empty())
      lines.push_back(std::move(others));
    return lines;
  };
  if (other_failure_) return with_others("the job has ended: " + other_failure_->why);
  if (first_failed_rank_ || unsurvived_failure_ || exit_code() == 0) return {};
  if (!why_it_ends_.empty() && ending_signal_ == 0)
    return with_others("the job has ended: " + why_it_ends_);
  return with_others(ending_signal_ == SIGPIPE
                         ? "the job has ended because nobody reads its output"
                         : "the job has ended after " + signal_name(ending_signal_));
}

}  // namespace farandole
