// What the referee checks and counts only in jobs on several hosts.
#include <algorithm>

#include "base/format.h"
#include "referee.h"

namespace farandole::sim {

void Referee::record_leave_request(int group, int worker) {
  if (closed_parts_.emplace(group, host_of(worker)).second) first_leavers_[group].insert(worker);
}

void Referee::record_closed_by_another_host(int group, int worker) {
  closed_parts_.emplace(group, host_of(worker));
  ++multi_host_counts_.ends_received;
}

void Referee::record_entered_by_all_hosts(int /*group*/, bool host_part_is_closed) {
  multi_host_counts_.steps_finished += host_part_is_closed ? 1U : 0U;
}

void Referee::record_misprediction(int group, int worker, const StepNumber& step_number) {
  if (script_.hosts.empty()) return;
  mispredictions_[{group, step_number.generation, step_number.sequence}].insert(host_of(worker));
}

void Referee::record_rollback_with_entries_in_flight(int group, std::uint32_t generation) {
  replans_with_entries_.emplace(group, generation);
}

MultiHostCounts Referee::multi_host_counts() const {
  MultiHostCounts counts = multi_host_counts_;
  counts.replans_with_entries = replans_with_entries_.size();
  for (const auto& [step, hosts] : mispredictions_) {
    const auto all = script_.hosts_of(std::get<0>(step));
    const auto is_unaware = [&hosts](int host) { return !hosts.contains(host); };
    counts.partial_mispredictions += std::ranges::any_of(all, is_unaware) ? 1U : 0U;
  }
  std::map<int, int> deaths;  // by host
  for (const auto& [worker, died] : ends_)
    if (died && !script_.hosts.empty()) ++deaths[host_of(worker)];
  for (const auto& [host, count] : deaths)
    counts.hosts_died += std::ranges::count(script_.hosts, host) == count ? 1U : 0U;
  return counts;
}

// The order of events on different hosts is never compared. Each host blames the rank of whose
// death or leave it has learned first. That rank must have died, or must have left before its own
// host knew of another leave.
void Referee::check_blame(int group, int worker, int failed_rank, bool died) {
  const auto is_death = [failed_rank](const WorkerEnd& end) {
    return end.died && end.worker == failed_rank;
  };
  const bool is_right =
      died ? std::ranges::any_of(ends_, is_death) : first_leavers_[group].contains(failed_rank);
  if (!is_right)
    report_problem(format_text("worker {} blames {} for the end of group {}, which {}", worker,
                               failed_rank, group,
                               died ? "has not died" : "was not the first to leave"));
}

// If no rank has died, a call has the same outcome on all its members. If one member has completed
// a step, all members complete it.
void Referee::check_outcomes(int group) {
  const auto hosts = script_.hosts_of(group);
  if (hosts.empty() || std::ranges::count(hosts, hosts.front()) == std::ssize(hosts)) return;
  const auto is_done = [](Outcome outcome) {
    return outcome == Outcome::kDone || outcome == Outcome::kRejected;
  };
  for (int number = 0; number < static_cast<int>(script_.calls.size()); ++number) {
    const auto& call = call_of(number);
    if (call.group != group) continue;
    const auto done_by = std::ranges::find_if(
        call.makers, [&](int maker) { return is_done(outcome(maker, number)); });
    if (done_by == call.makers.end()) continue;
    for (const int maker : call.makers)
      if (!is_done(outcome(maker, number)))
        report_problem(
            format_text("call {} has two outcomes: worker {} has completed it, and worker "
                        "{} has not",
                        number, *done_by, maker));
  }
  for (const auto& member : record_of(group).members)
    if (member.completed != record_of(group).agreed_decisions.size())
      report_problem("a step did not reach every member, though all hosts had entered it");
}

}  // namespace farandole::sim
