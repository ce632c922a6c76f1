// The faults of a simulated job.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "simulated_job.h"

namespace farandole {
namespace {

constexpr int kSlotsMax = 8;          // no node is added to a job with this many slots
constexpr int kNumbersMax = 9;        // the highest number of nodes
constexpr std::size_t kHostsMax = 4;  // the longest list of hosts, if the list changes

int slots_of_list(const std::vector<HostEntry>& hosts) {
  int slots = 0;
  for (const HostEntry& host : hosts) slots += host.slots;
  return slots;
}

}  // namespace

const char* name_of(Fault fault) {
  static constexpr std::array<const char*, kFaultCount> kNames{
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

bool SimulatedJob::can_have(Kind kind, Fault fault) {
  if (fault >= Fault::kHostAppears) return kind == Kind::kDiscovery;
  if (fault == Fault::kNode0LauncherLost) return kind != Kind::kWithoutDriver;
  if (fault == Fault::kNodeLeaves || fault == Fault::kNodeAdded)
    return kind == Kind::kWithoutDriver;
  return true;
}

void SimulatedJob::inject(Fault fault) {
  if (is_over_ || !can_have(kind_, fault)) return;
  int& fault_count = counts_.faults.at(static_cast<std::size_t>(fault));
  const int count_before = fault_count;
  const int number = node_count() > 1 ? random_between(1, node_count() - 1) : 0;
  print_event(std::string("fault: ") + name_of(fault));
  switch (fault) {
    case Fault::kWorkerEnds:
    case Fault::kWorkerStops:
      return inject_worker_fault(fault, random_between(0, node_count() - 1));
    case Fault::kLauncherKilled:
      if (number == 0 || !has_launcher(number)) return;
      kill_launcher(number);
      break;
    case Fault::kAllButOneKilled:
      if (node_count() < 3) return;
      for (int other_number = 1; other_number < node_count(); ++other_number)
        if (other_number != number && has_launcher(other_number)) kill_launcher(other_number);
      break;
    case Fault::kFrozen:
      if (number == 0 || !node_at(number).is_running || is_frozen(node_at(number))) return;
      node_at(number).frozen_from = now_;
      node_at(number).frozen_until = now_ + std::chrono::seconds(random_between(2, 40));
      break;
    case Fault::kNodeLeaves:
      if (number == 0 || !node_at(number).is_running || !node_at(number).is_connected ||
          node_at(number).is_leaving)
        return;
      node_at(number).is_leaving = node_at(number).elastic_node->begin_to_leave(
          now_ + std::chrono::seconds(random_between(5, 30)));
      break;
    case Fault::kNodeAdded:
      if (workers_of_nodes_.size() != nodes_.size() || first_slot(node_count()) >= kSlotsMax)
        return;
      start_launcher(node_count(), {.name = "a host", .user = "", .slots = random_between(1, 2)});
      break;
    case Fault::kNode0LauncherLost:
      if (!first_node_) return;
      lose_node_0_launcher();
      break;
    default:
      if (fault >= Fault::kHostAppears) return inject_list_fault(fault);
      return inject_network_fault(fault, number);
  }
  fault_count = count_before + 1;
}

void SimulatedJob::inject_worker_fault(Fault fault, int number) {
  Node& node = node_at(number);
  const int local_rank = random_between(0, std::max(node.slots - 1, 0));
  if (!node.is_running || is_frozen(node) || !node.processes.contains(local_rank) ||
      (number == 0 && !first_node_))
    return;
  if (fault == Fault::kWorkerEnds)
    end_worker(number, local_rank);
  else if (node.processes.at(local_rank).is_stopped)
    return set_stopped(number, local_rank, false);
  else
    set_stopped(number, local_rank, true);
  ++counts_.faults.at(static_cast<std::size_t>(fault));
}

void SimulatedJob::inject_network_fault(Fault fault, int number) {
  if (number == 0) return;
  const int other_number = random_between(1, node_count() - 1);
  const bool is_pair = fault == Fault::kCutFromEachOther || fault == Fault::kCutFromOthers;
  if (is_pair && (node_count() < 3 || other_number == number)) return;
  switch (fault) {
    case Fault::kCutFromNode0:
      network_.cut_both(number, 0, now_);
      break;
    case Fault::kCutFromEachOther:
      network_.cut_both(number, other_number, now_);
      break;
    case Fault::kCutFromOthers:
    case Fault::kCutFromAll:
      network_.isolate(number, node_count(), fault == Fault::kCutFromAll, now_);
      break;
    case Fault::kCutToNode0:
      network_.cut(number, 0, now_);
      break;
    case Fault::kCutFromNode0OneWay:
      network_.cut(0, number, now_);
      break;
    case Fault::kNodesCutInTurn:
      network_.isolate_random_nodes_in_turn(node_count(), now_);
      break;
    default:
      network_.slow_down(number, now_);
  }
  network_.advance(now_);
  ++counts_.faults.at(static_cast<std::size_t>(fault));
}

// While faults are injected, some new hosts never start.
HostEntry SimulatedJob::new_host(int slots) {
  HostEntry host{.name = "host" + std::to_string(++host_names_used_), .user = "", .slots = slots};
  if (starts_may_fail_ && happens_one_in(4)) broken_hosts_.insert(host.name);
  return host;
}

// Never takes away slots that the job needs.
void SimulatedJob::inject_list_fault(Fault fault) {
  std::vector<HostEntry> hosts = driver_->listed_hosts();
  if (!change_host_list(fault, hosts) || hosts.empty() ||
      slots_of_list(hosts) < options_.workers_min)
    return;
  driver_->set_listed_hosts(hosts);
  ++counts_.faults.at(static_cast<std::size_t>(fault));
}

bool SimulatedJob::change_host_list(Fault fault, std::vector<HostEntry>& hosts) {
  const bool may_add =
      static_cast<int>(workers_of_nodes_.size()) < kNumbersMax && hosts.size() < kHostsMax;
  const auto chosen_host = hosts.begin() + random_between(0, static_cast<int>(hosts.size()) - 1);
  const HostEntry old_host = *chosen_host;
  switch (fault) {
    case Fault::kHostAppears:
      if (may_add) hosts.insert(chosen_host, new_host(random_between(1, 2)));
      return may_add;
    case Fault::kHostVanishes:
      hosts.erase(chosen_host);
      return true;
    case Fault::kHostComesBackAtOnce:
      hosts.erase(chosen_host);
      if (hosts.empty() || slots_of_list(hosts) < options_.workers_min) return false;
      hosts_to_restore_.emplace_back(now_ + std::chrono::milliseconds(random_between(100, 5000)),
                                     old_host);
      return true;
    case Fault::kHostChangesSlots:
      if (static_cast<int>(workers_of_nodes_.size()) >= kNumbersMax) return false;
      chosen_host->slots = 3 - old_host.slots;
      return true;
    default:
      *chosen_host = new_host(old_host.slots);
      return true;
  }
}

void SimulatedJob::restore_hosts() {
  while (!hosts_to_restore_.empty() && hosts_to_restore_.front().first <= now_) {
    std::vector<HostEntry> hosts = driver_->listed_hosts();
    hosts.push_back(hosts_to_restore_.front().second);
    hosts_to_restore_.pop_front();
    driver_->set_listed_hosts(hosts);
  }
}

void SimulatedJob::run(int steps) {
  starts_may_fail_ = true;
  const int fault_interval = random_between(20, 100);
  for (int i = 0; i < steps && !is_over_; ++i) {
    // Sometimes several faults happen at the same time.
    for (bool injects_fault = happens_one_in(fault_interval); injects_fault;
         injects_fault = happens_one_in(4))
      inject(random_fault());
    if (can_have(kind_, Fault::kNode0LauncherLost) && happens_one_in(is_taking_over() ? 60 : 400))
      inject(Fault::kNode0LauncherLost);
    for (; !scheduled_faults_.empty() && scheduled_faults_.begin()->first <= now_;
         scheduled_faults_.erase(scheduled_faults_.begin()))
      inject(scheduled_faults_.begin()->second);
    const int epochs = counts_.epochs;
    step();
    if (counts_.epochs > epochs && happens_one_in(15)) schedule_faults_at_new_group();
  }
  starts_may_fail_ = false;
  scheduled_faults_.clear();
  broken_hosts_.clear();
}

// Schedules the loss of node 0's launcher at a time when only some nodes have learned of a new
// group. Then schedules up to two further faults.
void SimulatedJob::schedule_faults_at_new_group() {
  if (!can_have(kind_, Fault::kNode0LauncherLost)) return;
  TimePoint fault_time = now_;
  for (const Fault fault :
       {Fault::kNode0LauncherLost, happens_one_in(2) ? Fault::kAllButOneKilled : random_fault(),
        Fault::kNode0LauncherLost}) {
    fault_time += std::chrono::milliseconds(random_between(0, happens_one_in(2) ? 300 : 5000));
    scheduled_faults_.emplace(fault_time, fault);
    if (happens_one_in(2)) return;
  }
}

// Returns a random fault that this kind of job can have. If the job has a changing host list, the
// fault is often a fault of that list.
Fault SimulatedJob::random_fault() {
  const bool changes_list = kind_ == Kind::kDiscovery && happens_one_in(3);
  const int first_fault = changes_list ? static_cast<int>(Fault::kHostAppears) : 0;
  for (;;)
    if (const auto fault = static_cast<Fault>(random_between(first_fault, kFaultCount - 1));
        can_have(kind_, fault))
      return fault;
}

int SimulatedJob::recover(int steps_max) {
  int steps = 0;
  for (; steps < steps_max && !is_over_ && !all_workers_run(); ++steps) step();
  if (driver_) counts_.node_numbers_reused = driver_->node_numbers_reused();
  return steps;
}

}  // namespace farandole
