#include "launcher/supervision.h"

#include <signal.h>
#include <string.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace farandole {
namespace {

// "rank 3", "ranks 0-2, 5".
std::string name_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += std::to_string(ranks[i]);
    if (last > i) text += (last == i + 1 ? ", " : "-") + std::to_string(ranks[last]);
    i = last + 1;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

std::string describe_end(const ProcessEnd& end) {
  if (end.signal == 0) return "exited with code " + std::to_string(end.code);
  return "killed by signal " + std::to_string(end.signal) + " (" + signal_name(end.signal) + ")";
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

Supervision::Supervision(std::vector<pid_t> pids, std::chrono::seconds grace)
    : grace_(grace), living_(pids.size()) {
  for (const pid_t pid : pids) workers_.push_back({.pid = pid, .end = {}});
}

bool Supervision::lives(int rank) const {
  return !workers_.at(static_cast<std::size_t>(rank)).end.has_value();
}

void Supervision::enter(State state, std::optional<TimePoint> deadline) {
  state_ = state;
  deadline_ = deadline;
}

Deeds Supervision::worker_ended(int rank, ProcessEnd end, TimePoint now) {
  Worker& worker = workers_.at(static_cast<std::size_t>(rank));
  CHECK(!worker.end, "a worker ends once");
  worker.end = end;
  --living_;
  if (living_ == 0) deadline_.reset();
  if (!end.failed() || state_ != State::kRunning) return {};
  first_failure_ = rank;
  if (living_ > 0) enter(State::kOwnErrors, now + kOwnErrorTime);
  return {};
}

Deeds Supervision::signal_received(int signal, TimePoint now) {
  const bool same = signal == ending_signal_ && now - last_signal_time_ < kSameSignalTime;
  last_signal_time_ = now;
  if (same || finished()) return {};
  switch (state_) {
    case State::kRunning: {
      ending_signal_ = signal;
      enter(State::kSignalled, now + grace_);
      remember_signal(signal == SIGPIPE ? SIGTERM : signal);
      Deeds deeds;
      if (signal == SIGPIPE)
        deeds.notices.push_back("nobody reads the output any more; ending the job");
      else
        deeds.notices.push_back(signal_name(signal) + " passed on to " + living_ranks() +
                                "; what is left after " + std::to_string(grace_.count()) +
                                " s is killed, a second signal kills at once");
      deeds.pass_signal = signal == SIGPIPE ? SIGTERM : signal;
      return deeds;
    }
    case State::kOwnErrors:
      ending_signal_ = signal;
      return terminate(signal == SIGPIPE ? SIGTERM : signal, now);
    case State::kTerminating:
    case State::kSignalled:
      return kill(now,
                  {"a second signal (" + signal_name(signal) + "); killing " + living_ranks()});
    case State::kKilling:
    case State::kGivenUp:
      return {};
  }
  return {};
}

Deeds Supervision::time_passed(TimePoint now) {
  if (!deadline_ || now < *deadline_) return {};
  switch (state_) {
    case State::kOwnErrors:
      return terminate(SIGTERM, now);
    case State::kTerminating:
      return kill(now, {living_ranks() + " did not end after SIGTERM; killing"});
    case State::kSignalled:
      return kill(now, {living_ranks() + " did not end within " + std::to_string(grace_.count()) +
                        " s; killing"});
    case State::kKilling: {
      Deeds deeds;
      deeds.notices.push_back(living_ranks() +
                              " cannot be killed (stuck in the kernel, or owned by another user); "
                              "giving up");
      enter(State::kGivenUp, std::nullopt);
      return deeds;
    }
    case State::kRunning:
    case State::kGivenUp:
      break;
  }
  return {};
}

Deeds Supervision::terminate(int signal, TimePoint now) {
  Deeds deeds;
  if (first_failure_)
    deeds.notices.push_back(describe(*first_failure_) + "; ending " + living_ranks() + " with " +
                            signal_name(signal));
  deeds.pass_signal = signal;
  remember_signal(signal);
  enter(State::kTerminating, now + kTerminateTime);
  return deeds;
}

Deeds Supervision::kill(TimePoint now, std::vector<std::string> notices) {
  Deeds deeds{std::move(notices), std::nullopt, true};
  remember_signal(SIGKILL);
  enter(State::kKilling, now + kKillTime);
  return deeds;
}

void Supervision::remember_signal(int signal) {
  for (auto& worker : workers_)
    if (!worker.end) worker.our_signal = signal;
}

std::string Supervision::living_ranks() const {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (!workers_[i].end) ranks.push_back(static_cast<int>(i));
  return name_ranks(ranks);
}

std::string Supervision::describe(int rank) const {
  const Worker& worker = workers_.at(static_cast<std::size_t>(rank));
  std::string text = "rank " + std::to_string(rank) + " (pid " + std::to_string(worker.pid) + ") ";
  if (worker.end->signal != 0) text += "was ";
  text += describe_end(*worker.end);
  return text;
}

int Supervision::exit_code() const {
  if (first_failure_)
    return workers_.at(static_cast<std::size_t>(*first_failure_)).end->exit_code();
  return ending_signal_ != 0 ? 128 + ending_signal_ : 0;
}

std::string Supervision::fate_of(const Worker& worker) {
  if (!worker.end) return "still there";
  if (worker.end->signal != 0 && worker.end->signal == worker.our_signal)
    return "ended with " + signal_name(worker.our_signal);
  return describe_end(*worker.end);
}

// Ranks with the same fate share one part of the line.
std::string Supervision::the_others(int but) const {
  std::vector<std::pair<std::string, std::vector<int>>> fates;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (static_cast<int>(i) == but) continue;
    const std::string fate = fate_of(workers_[i]);
    auto same = std::find_if(fates.begin(), fates.end(),
                             [&](const auto& entry) { return entry.first == fate; });
    if (same == fates.end()) same = fates.insert(fates.end(), {fate, {}});
    same->second.push_back(static_cast<int>(i));
  }
  std::string line;
  for (const auto& [fate, ranks] : fates)
    line += (line.empty() ? "" : "; ") + name_ranks(ranks) + ": " + fate;
  return line;
}

bool Supervision::killed_by_somebody() const {
  return first_failure_ &&
         workers_.at(static_cast<std::size_t>(*first_failure_)).end->signal == SIGKILL;
}

std::vector<std::string> Supervision::closing_lines() const {
  if (exit_code() == 0) return {};
  std::vector<std::string> lines;
  if (first_failure_)
    lines.push_back(describe(*first_failure_) + "; the job has ended");
  else if (ending_signal_ == SIGPIPE)
    lines.push_back("the job has ended because nobody reads its output");
  else
    lines.push_back("the job has ended after " + signal_name(ending_signal_));
  const std::string others = the_others(first_failure_.value_or(-1));
  if (!others.empty()) lines.push_back((first_failure_ ? "the others: " : "") + others);
  return lines;
}

}  // namespace farandole
