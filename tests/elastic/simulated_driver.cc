#include "simulated_driver.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace farandole {
namespace {

constexpr auto kPauseMax = std::chrono::seconds(60);
constexpr auto kLeaveTime = std::chrono::seconds(5);
constexpr auto kLookPause = std::chrono::seconds(1);

}  // namespace

SimulatedDriver::SimulatedDriver(const std::vector<HostEntry>& first, bool discovers)
    : listed_(first.begin() + 1, first.end()), nodes_joined_(first.size()) {
  for (const HostEntry& host : first) processes_.push_back({.host = host, .takes_part = true});
  if (discovers) roster_.emplace(first);
}

std::vector<SimulatedDriver::Action> SimulatedDriver::advance(TimePoint now) {
  std::vector<Action> actions;
  for (int node = 1; node < static_cast<int>(processes_.size()); ++node) {
    Process& process = at(node);
    if (process.kill_at && now >= *process.kill_at) {
      process.kill_at.reset();
      if (process.runs) actions.push_back({Action::Kind::kKill, node});
    }
    if (!process.start_again || now < *process.start_again) continue;
    process.start_again.reset();
    if (may_start_again(node)) start(node, HostEntry(process.host), process.failures, actions);
  }
  if (roster_ && now >= next_look_) take_list(now, actions);
  return actions;
}

void SimulatedDriver::start(int node, const HostEntry& host, int failures,
                            std::vector<Action>& actions) {
  at(node) = {.host = host, .failures = failures};
  if (roster_) roster_->launcher_started(node);
  actions.push_back({Action::Kind::kStart, node, host});
}

void SimulatedDriver::take_list(TimePoint now, std::vector<Action>& actions) {
  next_look_ = now + kLookPause;
  const HostRoster::Changes changes = roster_->take(listed_);
  for (const int node : changes.leave) {
    Process& process = at(node);
    process.start_again.reset();
    if (process.told_to_leave) continue;
    process.told_to_leave = process.is_leaving = true;
    if (process.runs) actions.push_back({Action::Kind::kLeave, node});
  }
  for (const int node : changes.back)
    if (!at(node).runs) at(node).start_again = now;
  if (!changes.added) return;
  const int node = changes.added->node;
  if (node < static_cast<int>(processes_.size()))
    ++numbers_used_again_;
  else
    processes_.emplace_back();
  start(node, changes.added->host, changes.added->tries, actions);
}

void SimulatedDriver::joined(int node, TimePoint now) {
  at(node).joined_at = now;
  at(node).takes_part = true;
  nodes_joined_ = std::max(nodes_joined_, static_cast<std::size_t>(node) + 1);
  if (roster_) roster_->joined(node);
}

void SimulatedDriver::lost(int node, TimePoint now) {
  Process& process = at(node);
  if (!std::exchange(process.takes_part, false) || !process.runs) return;
  process.kill_at = now;
  if (process.is_leaving) *process.kill_at += kLeaveTime;
}

void SimulatedDriver::ended(int node, bool has_failed, TimePoint now) {
  Process& process = at(node);
  if (!process.runs) return;
  process.runs = process.takes_part = false;
  if (roster_) roster_->launcher_ended(node);
  const bool is_needed = (has_failed && !process.is_leaving) || process.told_to_leave;
  if (!is_needed || !may_start_again(node)) return;
  if (process.joined_at && now > *process.joined_at + kPauseMax) process.failures = 0;
  Duration pause = std::chrono::seconds(1);
  for (int i = 0; i < process.failures && pause < kPauseMax; ++i) pause *= 2;
  ++process.failures;
  process.start_again = now + std::min<Duration>(pause, kPauseMax);
}

Replacement SimulatedDriver::replace_first() {
  Replacement replaces{.number = ++lost_launchers_, .epoch = static_cast<std::uint32_t>(epoch_)};
  for (std::size_t node = 0; node < nodes_joined_; ++node) {
    replaces.workers.push_back(static_cast<std::uint32_t>(processes_[node].host.slots));
    if (node > 0 && processes_[node].takes_part)
      replaces.nodes.push_back(static_cast<std::uint32_t>(node));
  }
  return replaces;
}

bool SimulatedDriver::is_settled() const {
  for (std::size_t node = 1; node < processes_.size(); ++node) {
    const Process& process = processes_[node];
    const bool is_wanted = may_start_again(static_cast<int>(node));
    if (process.takes_part != is_wanted || process.runs != is_wanted || process.is_leaving)
      if (is_wanted || process.runs) return false;
  }
  return !roster_ || std::ranges::all_of(listed_, [this](const HostEntry& host) {
    return std::ranges::any_of(processes_, [&](const Process& process) {
      return process.takes_part && process.host.name == host.name &&
             process.host.slots == host.slots;
    });
  });
}

}  // namespace farandole
