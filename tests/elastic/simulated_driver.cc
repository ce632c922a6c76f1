#include "simulated_driver.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace farandole {
namespace {

constexpr auto kRestartDelayMax = std::chrono::seconds(60);
constexpr auto kLeaveTimeMax = std::chrono::seconds(5);
constexpr auto kListReadInterval = std::chrono::seconds(1);

}  // namespace

SimulatedDriver::SimulatedDriver(const std::vector<HostEntry>& first_hosts, bool discovers_hosts)
    : listed_hosts_(first_hosts.begin() + 1, first_hosts.end()), nodes_joined_(first_hosts.size()) {
  for (const HostEntry& host : first_hosts)
    processes_.push_back({.host = host, .takes_part = true});
  if (discovers_hosts) roster_.emplace(first_hosts);
}

std::vector<SimulatedDriver::Action> SimulatedDriver::advance(TimePoint now) {
  std::vector<Action> actions;
  for (int node = 1; node < static_cast<int>(processes_.size()); ++node) {
    Process& process = process_of(node);
    if (process.kill_at && now >= *process.kill_at) {
      process.kill_at.reset();
      if (process.is_running) actions.push_back({Action::Kind::kKill, node});
    }
    if (!process.restart_at || now < *process.restart_at) continue;
    process.restart_at.reset();
    if (may_restart(node)) start(node, HostEntry(process.host), process.failures, actions);
  }
  if (roster_ && now >= next_list_read_) read_host_list(now, actions);
  return actions;
}

void SimulatedDriver::start(int node, const HostEntry& host, int failures,
                            std::vector<Action>& actions) {
  process_of(node) = {.host = host, .failures = failures};
  if (roster_) roster_->launcher_started(node);
  actions.push_back({Action::Kind::kStart, node, host});
}

void SimulatedDriver::read_host_list(TimePoint now, std::vector<Action>& actions) {
  next_list_read_ = now + kListReadInterval;
  const HostRoster::Changes changes = roster_->update(listed_hosts_);
  for (const int node : changes.leaving) {
    Process& process = process_of(node);
    process.restart_at.reset();
    if (process.was_told_to_leave) continue;
    process.was_told_to_leave = process.is_leaving = true;
    if (process.is_running) actions.push_back({Action::Kind::kLeave, node});
  }
  for (const int node : changes.listed_again)
    if (!process_of(node).is_running) process_of(node).restart_at = now;
  if (!changes.addition) return;
  const int node = changes.addition->node;
  if (node < static_cast<int>(processes_.size()))
    ++node_numbers_reused_;
  else
    processes_.emplace_back();
  start(node, changes.addition->host, changes.addition->failed_starts, actions);
}

void SimulatedDriver::node_joined(int node, TimePoint now) {
  process_of(node).joined_at = now;
  process_of(node).takes_part = true;
  nodes_joined_ = std::max(nodes_joined_, static_cast<std::size_t>(node) + 1);
  if (roster_) roster_->node_joined(node);
}

void SimulatedDriver::node_lost(int node, TimePoint now) {
  Process& process = process_of(node);
  if (!std::exchange(process.takes_part, false) || !process.is_running) return;
  process.kill_at = now;
  if (process.is_leaving) *process.kill_at += kLeaveTimeMax;
}

void SimulatedDriver::launcher_ended(int node, bool has_failed, TimePoint now) {
  Process& process = process_of(node);
  if (!process.is_running) return;
  process.is_running = process.takes_part = false;
  if (roster_) roster_->launcher_ended(node);
  const bool must_restart = (has_failed && !process.is_leaving) || process.was_told_to_leave;
  if (!must_restart || !may_restart(node)) return;
  if (process.joined_at && now > *process.joined_at + kRestartDelayMax) process.failures = 0;
  Duration restart_delay = std::chrono::seconds(1);
  for (int i = 0; i < process.failures && restart_delay < kRestartDelayMax; ++i) restart_delay *= 2;
  ++process.failures;
  process.restart_at = now + std::min<Duration>(restart_delay, kRestartDelayMax);
}

Replacement SimulatedDriver::replace_node_0_launcher() {
  Replacement replacement{.number = ++lost_launchers_, .epoch = static_cast<std::uint32_t>(epoch_)};
  for (std::size_t node = 0; node < nodes_joined_; ++node) {
    replacement.workers.push_back(static_cast<std::uint32_t>(processes_[node].host.slots));
    if (node > 0 && processes_[node].takes_part)
      replacement.nodes.push_back(static_cast<std::uint32_t>(node));
  }
  return replacement;
}

bool SimulatedDriver::is_settled() const {
  for (std::size_t node = 1; node < processes_.size(); ++node) {
    const Process& process = processes_[node];
    const bool is_wanted = may_restart(static_cast<int>(node));
    if (process.takes_part != is_wanted || process.is_running != is_wanted || process.is_leaving)
      if (is_wanted || process.is_running) return false;
  }
  return !roster_ || std::ranges::all_of(listed_hosts_, [this](const HostEntry& host) {
    return std::ranges::any_of(processes_, [&](const Process& process) {
      return process.takes_part && process.host.name == host.name &&
             process.host.slots == host.slots;
    });
  });
}

}  // namespace farandole
