// The faults of a simulated job.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "simulated_job.h"

namespace farandole {
namespace {

constexpr int kSlotsMax = 8;          // no more nodes are added then
constexpr int kNumbersMax = 9;        // of nodes
constexpr std::size_t kHostsMax = 4;  // in a list that changes

int slots_of_list(const std::vector<HostEntry>& hosts) {
  int slots = 0;
  for (const HostEntry& host : hosts) slots += host.slots;
  return slots;
}

}  // namespace

const char* name_of(Fault fault) {
  static constexpr std::array<const char*, kFaults> kNames{
      "a worker ends",
      "a worker stops",
      "a launcher is killed",
      "all launchers but one are killed",
      "a node is cut from node 0",
      "two nodes are cut from each other",
      "a node is cut from all but node 0",
      "a node is cut from all",
      "a node is cut to node 0",
      "node 0 is cut to a node",
      "random nodes are cut one after the other",
      "a node is slow",
      "a node is frozen",
      "a node leaves",
      "a node is added",
      "the launcher of node 0 is lost",
      "a host appears",
      "a host vanishes",
      "a host vanishes and comes back",
      "a host changes its slots",
      "a host is replaced by another one",
  };
  return kNames.at(static_cast<std::size_t>(fault));
}

bool SimulatedJob::has(Kind kind, Fault fault) {
  if (fault >= Fault::kHostAppears) return kind == Kind::kDiscovery;
  if (fault == Fault::kFirstLost) return kind != Kind::kWithoutDriver;
  if (fault == Fault::kNodeLeaves || fault == Fault::kNodeAdded)
    return kind == Kind::kWithoutDriver;
  return true;
}

void SimulatedJob::inject(Fault fault) {
  if (is_over_ || !has(kind_, fault)) return;
  int& happened = counts_.faults.at(static_cast<std::size_t>(fault));
  const int before = happened;
  const int number = count() > 1 ? between(1, count() - 1) : 0;
  tell(std::string("fault: ") + name_of(fault));
  switch (fault) {
    case Fault::kWorkerEnds:
    case Fault::kWorkerStops:
      return worker_fault(fault, between(0, count() - 1));
    case Fault::kLauncherKilled:
      if (number == 0 || !has_launcher(number)) return;
      kill_launcher(number);
      break;
    case Fault::kAllButOneKilled:
      if (count() < 3) return;
      for (int other = 1; other < count(); ++other)
        if (other != number && has_launcher(other)) kill_launcher(other);
      break;
    case Fault::kFrozen:
      if (number == 0 || !at(number).runs || is_frozen(at(number))) return;
      at(number).frozen_from = now_;
      at(number).frozen_until = now_ + std::chrono::seconds(between(2, 40));
      break;
    case Fault::kNodeLeaves:
      if (number == 0 || !at(number).runs || !at(number).is_connected || at(number).is_leaving)
        return;
      at(number).is_leaving =
          at(number).elastic->leave(now_ + std::chrono::seconds(between(5, 30)));
      break;
    case Fault::kNodeAdded:
      if (roll_.size() != nodes_.size() || first_slot(count()) >= kSlotsMax) return;
      start_launcher(count(), {.name = "a host", .user = "", .slots = between(1, 2)});
      break;
    case Fault::kFirstLost:
      if (!first_) return;
      lose_first();
      break;
    default:
      if (fault >= Fault::kHostAppears) return list_fault(fault);
      return network_fault(fault, number);
  }
  happened = before + 1;
}

void SimulatedJob::worker_fault(Fault fault, int number) {
  Node& node = at(number);
  const int local_rank = between(0, std::max(node.slots - 1, 0));
  if (!node.runs || is_frozen(node) || !node.processes.contains(local_rank) ||
      (number == 0 && !first_))
    return;
  if (fault == Fault::kWorkerEnds)
    end_worker(number, local_rank);
  else if (node.processes.at(local_rank).is_stopped)
    return set_stopped(number, local_rank, false);
  else
    set_stopped(number, local_rank, true);
  ++counts_.faults.at(static_cast<std::size_t>(fault));
}

void SimulatedJob::network_fault(Fault fault, int number) {
  if (number == 0) return;
  const int other = between(1, count() - 1);
  const bool is_pair = fault == Fault::kCutFromEachOther || fault == Fault::kCutFromOthers;
  if (is_pair && (count() < 3 || other == number)) return;
  switch (fault) {
    case Fault::kCutFromNode0:
      network_.cut_both(number, 0, now_);
      break;
    case Fault::kCutFromEachOther:
      network_.cut_both(number, other, now_);
      break;
    case Fault::kCutFromOthers:
    case Fault::kCutFromAll:
      network_.isolate(number, count(), fault == Fault::kCutFromAll, now_);
      break;
    case Fault::kCutToNode0:
      network_.cut(number, 0, now_);
      break;
    case Fault::kCutFromNode0OneWay:
      network_.cut(0, number, now_);
      break;
    case Fault::kSwizzle:
      network_.swizzle(count(), now_);
      break;
    default:
      network_.slow_down(number, now_);
  }
  network_.advance(now_);
  ++counts_.faults.at(static_cast<std::size_t>(fault));
}

// While faults come, some new hosts never start.
HostEntry SimulatedJob::new_host(int slots) {
  HostEntry host{.name = "host" + std::to_string(++hosts_), .user = "", .slots = slots};
  if (starts_may_fail_ && one_in(4)) broken_hosts_.insert(host.name);
  return host;
}

// The job always may use as many slots as it needs.
void SimulatedJob::list_fault(Fault fault) {
  std::vector<HostEntry> hosts = driver_->list();
  if (!has_changed_list(fault, hosts) || hosts.empty() ||
      slots_of_list(hosts) < options_.workers_min)
    return;
  driver_->set_list(hosts);
  ++counts_.faults.at(static_cast<std::size_t>(fault));
}

bool SimulatedJob::has_changed_list(Fault fault, std::vector<HostEntry>& hosts) {
  const bool may_add = static_cast<int>(roll_.size()) < kNumbersMax && hosts.size() < kHostsMax;
  const auto chosen = hosts.begin() + between(0, static_cast<int>(hosts.size()) - 1);
  const HostEntry before = *chosen;
  switch (fault) {
    case Fault::kHostAppears:
      if (may_add) hosts.insert(chosen, new_host(between(1, 2)));
      return may_add;
    case Fault::kHostVanishes:
      hosts.erase(chosen);
      return true;
    case Fault::kHostComesBackAtOnce:
      hosts.erase(chosen);
      if (hosts.empty() || slots_of_list(hosts) < options_.workers_min) return false;
      listed_later_.emplace_back(now_ + std::chrono::milliseconds(between(100, 5000)), before);
      return true;
    case Fault::kHostChangesSlots:
      if (static_cast<int>(roll_.size()) >= kNumbersMax) return false;
      chosen->slots = 3 - before.slots;
      return true;
    default:
      *chosen = new_host(before.slots);
      return true;
  }
}

void SimulatedJob::change_list_back() {
  while (!listed_later_.empty() && listed_later_.front().first <= now_) {
    std::vector<HostEntry> hosts = driver_->list();
    hosts.push_back(listed_later_.front().second);
    listed_later_.pop_front();
    driver_->set_list(hosts);
  }
}

void SimulatedJob::run(int steps) {
  starts_may_fail_ = true;
  const int pause = between(20, 100);
  for (int i = 0; i < steps && !is_over_; ++i) {
    // Sometimes several come at once.
    for (bool more = one_in(pause); more; more = one_in(4)) inject(any_fault());
    if (has(kind_, Fault::kFirstLost) && one_in(is_taking_over() ? 60 : 400))
      inject(Fault::kFirstLost);
    for (; !coming_.empty() && coming_.begin()->first <= now_; coming_.erase(coming_.begin()))
      inject(coming_.begin()->second);
    const int epochs = counts_.epochs;
    step();
    if (counts_.epochs > epochs && one_in(15)) faults_at_new_group();
  }
  starts_may_fail_ = false;
  coming_.clear();
  broken_hosts_.clear();
}

// The launcher of node 0 is lost when only some have heard of a new group. Then other faults come.
void SimulatedJob::faults_at_new_group() {
  if (!has(kind_, Fault::kFirstLost)) return;
  TimePoint at = now_;
  for (const Fault fault :
       {Fault::kFirstLost, one_in(2) ? Fault::kAllButOneKilled : any_fault(), Fault::kFirstLost}) {
    at += std::chrono::milliseconds(between(0, one_in(2) ? 300 : 5000));
    coming_.emplace(at, fault);
    if (one_in(2)) return;
  }
}

// Returns one that this kind of job has. If its hosts change, they often do.
Fault SimulatedJob::any_fault() {
  const bool changes_list = kind_ == Kind::kDiscovery && one_in(3);
  const int first = changes_list ? static_cast<int>(Fault::kHostAppears) : 0;
  for (;;)
    if (const auto fault = static_cast<Fault>(between(first, kFaults - 1)); has(kind_, fault))
      return fault;
}

int SimulatedJob::recover(int steps_max) {
  int steps = 0;
  for (; steps < steps_max && !is_over_ && !everybody_runs(); ++steps) step();
  if (driver_) counts_.numbers_used_again = driver_->numbers_used_again();
  return steps;
}

}  // namespace farandole
