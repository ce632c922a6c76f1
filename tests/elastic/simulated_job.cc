// The start and the steps of a simulated job, and the launchers of all nodes but node 0.
#include "simulated_job.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace farandole {

using std::chrono::milliseconds;
using std::chrono::seconds;

void SimulatedCounts::add(const SimulatedCounts& other) {
  for (std::size_t i = 0; i < faults.size(); ++i) faults[i] += other.faults[i];
  epochs += other.epochs;
  takeovers += other.takeovers;
  losses_while_taking_over += other.losses_while_taking_over;
  late_nodes += other.late_nodes;
  returns_after_rejection += other.returns_after_rejection;
  failed_formations += other.failed_formations;
  calls_failed_by_cuts += other.calls_failed_by_cuts;
  old_launchers += other.old_launchers;
  rejected_nodes += other.rejected_nodes;
  groups_with_frozen_members += other.groups_with_frozen_members;
  numbers_used_again += other.numbers_used_again;
  ends_in_doubt += other.ends_in_doubt;
}

SimulatedJob::SimulatedJob(unsigned seed, Kind kind, bool tells)
    : random_(seed), kind_(kind), tells_(tells) {
  const bool has_driver = kind != Kind::kWithoutDriver;
  const int nodes = between(kind == Kind::kDiscovery ? 2 : 1, 3) + (has_driver ? 1 : 0);
  NodeLayout layout;
  layout.workers.clear();
  std::vector<HostEntry> hosts{{.name = "of node 0", .user = "", .slots = 0}};
  for (int node = 0; node < nodes; ++node) {
    roll_.push_back(
        has_driver && node == 0 ? 0 : between(1, node == 0 || kind == Kind::kDiscovery ? 2 : 3));
    if (node > 0) hosts.push_back(new_host(roll_.back()));
  }
  layout.workers = roll_;
  if (has_driver) driver_.emplace(hosts, kind == Kind::kDiscovery);
  options_.workers = layout.size();
  options_.workers_min = between(1, std::min(2, layout.size()));
  options_.workers_max = between(layout.size(), 9);
  options_.shortage_max = seconds(1'000'000);
  link_.start.emplace();
  for (int node = 0; node < nodes; ++node) {
    link_.start->workers.push_back(
        static_cast<std::uint32_t>(roll_[static_cast<std::size_t>(node)]));
    nodes_.push_back(std::make_unique<Node>());
    at(node).slots = roll_[static_cast<std::size_t>(node)];
    at(node).runs = at(node).is_connected = true;
  }
  for (int node = 1; node < nodes; ++node) {
    begin_node(node, false);
    here_.insert(node);
  }
  at(0).store = StoreServer::create("the launcher").value();
  first_.emplace(options_, layout, job_store(), &link_, now_);
  for (int node = 0; node < nodes; ++node)
    for (int i = 0; i < at(node).slots; ++i) start_worker(node, i, first_slot(node) + i);
}

void SimulatedJob::tell(const std::string& what) const {
  if (!tells_) return;
  std::printf("%8.3f %s\n",
              std::chrono::duration<double>(now_.time_since_epoch() - seconds(1000)).count(),
              what.c_str());
}

int SimulatedJob::first_slot(int node) const {
  int slot = 0;
  for (int other = 0; other < node; ++other) slot += roll_.at(static_cast<std::size_t>(other));
  return slot;
}

void SimulatedJob::begin_node(int number, bool has_begun) {
  Node& node = at(number);
  node.store = StoreServer::create("a launcher").value();
  node.link = std::make_unique<NodeLinkInTest>();
  NodeLayout layout;
  layout.workers = roll_;
  layout.node = number;
  node.elastic = std::make_unique<OtherElasticNode>(layout, *node.store, *node.link, has_begun);
}

// A launcher is started. One with the same number may still run, because it has not noticed yet
// that it was lost.
void SimulatedJob::start_launcher(int number, const HostEntry& host) {
  tell("a launcher of node " + std::to_string(number) + " is started on " + host.name);
  if (number == count()) nodes_.push_back(std::make_unique<Node>());
  auto& place = nodes_.at(static_cast<std::size_t>(number));
  if (place->runs) {
    place->is_connected = false;
    old_launchers_.push_back(std::exchange(place, std::make_unique<Node>()));
    ++counts_.old_launchers;
  }
  *place = Node{};
  place->slots = host.slots;
  place->host = host.name;
  place->joins_at = now_ + milliseconds(between(50, 1500));
}

// Node 0 accepts or rejects it, as src/nodes/roll_call.cc does.
void SimulatedJob::launcher_joins(int number) {
  Node& node = at(number);
  if (now_ < *node.joins_at) return;
  const bool is_late = now_ > *node.joins_at + seconds(10);
  const bool must_wait = !first_ || !network_.connects(number, 0) || here_.contains(number);
  const bool is_broken = broken_hosts_.contains(node.host) || (starts_may_fail_ && one_in(40));
  const bool starts = !is_late && !is_broken;
  if (must_wait && starts) return;
  const auto index = static_cast<std::size_t>(number);
  const bool fits = index == roll_.size() || (index < roll_.size() && roll_[index] == node.slots);
  if (!starts || !fits) {
    tell("node " + std::to_string(number) + (fits ? " could not start" : " is rejected"));
    counts_.rejected_nodes += fits ? 0 : 1;
    return end_launcher(node, true);
  }
  node.joins_at.reset();
  if (index == roll_.size()) {
    roll_.push_back(node.slots);
    link_.start->workers.push_back(static_cast<std::uint32_t>(node.slots));
  }
  node.runs = node.is_connected = true;
  begin_node(number, true);
  change(number, true);
}

// All its workers end with it.
void SimulatedJob::end_launcher(Node& node, bool has_failed) {
  node.runs = node.is_connected = node.is_leaving = false;
  node.joins_at.reset();
  node.returns_until.reset();
  node.processes.clear();
  node.to_node.clear();
  if (!node.is_abandoned) node.end_to_tell = has_failed;
}

void SimulatedJob::kill_launcher(int number) {
  if (one_in(2)) at(number).to_node_0.clear();
  end_launcher(at(number), true);
}

void SimulatedJob::start_worker(int node, int local_rank, int number) {
  auto& processes = at(node).processes;
  ASSERT_FALSE(processes.contains(local_rank)) << "the slot has a worker already";
  processes[local_rank] = {
      .number = number, .slot = first_slot(node) + local_rank, .node = node, .home = &at(node)};
}

// A process has ended and was reaped by its launcher.
void SimulatedJob::end_worker(int node, int local_rank) {
  Node& one = at(node);
  const int slot = first_slot(node) + local_rank;
  one.processes.erase(local_rank);
  if (node == 0) return first_->worker_ended(local_rank, false, "a worker", now_);
  one.elastic->worker_ended(local_rank, false, "a worker", now_);
  send_what_was_told(node);
  if (one.is_connected)
    send_to_0(node, WorkerExit{static_cast<std::uint32_t>(slot), "a worker", false});
}

void SimulatedJob::send_what_was_told(int number) {
  for (auto& [to, message] : std::exchange(at(number).link->told, {}))
    if (at(number).is_connected) send_to_0(number, message);
}

void SimulatedJob::set_stopped(int node, int local_rank, bool is_stopped) {
  Process& process = at(node).processes.at(local_rank);
  if (std::exchange(process.is_stopped, is_stopped) == is_stopped) return;
  ElasticNode& elastic =
      node == 0 ? static_cast<ElasticNode&>(*first_) : static_cast<ElasticNode&>(*at(node).elastic);
  if (is_stopped)
    elastic.worker_stopped(local_rank, now_);
  else
    elastic.worker_continued(local_rank);
}

void SimulatedJob::step() {
  now_ += milliseconds(between(1, 200));
  network_.advance(now_);
  change_list_back();
  advance_driver();
  replace_first();
  for (int number = 1; number < count() && first_; ++number) find_node_0(number);
  if (first_) tell_if_nobody_is_expected();
  for (int number = 1; number < count(); ++number) step_of_node(number);
  end_old_launchers();
  advance_node_0();
  for_all_processes([this](Process& process) {
    if (!process.is_stopped && !is_frozen(*process.home) &&
        one_in(network_.is_slow(process.node) ? 30 : 3))
      step_of(process);
  });
  check();
}

void SimulatedJob::step_of_node(int number) {
  Node& node = at(number);
  if (node.joins_at && !is_frozen(node)) launcher_joins(number);
  notice_losses(number);
  if (node.runs && !node.is_connected && !is_frozen(node)) step_of_lonely(number);
  if (node.end_to_tell && driver_ && network_.connects(number, 0)) {
    driver_->ended(number, *node.end_to_tell, now_);
    node.end_to_tell.reset();
  }
  if (first_ && here_.contains(number) && network_.is_open(number, 0))
    take(node.to_node_0, [this](const NodeNews& news) {
      for (const NodeMessage& message : news.messages)
        if (const auto* leaves = std::get_if<NodeLeaves>(&message))
          write_line([number_of = static_cast<int>(leaves->node)](SimulatedDriver& driver) {
            driver.leaves(number_of);
          });
      first_->take_news(news, now_);
    });
  if (!node.runs || is_frozen(node) || (network_.is_slow(number) && !one_in(10))) return;
  carry_out_orders(number);
}

// Both sides notice at different times that a connection has ended. If nothing comes through, they
// notice it after some seconds.
void SimulatedJob::notice_losses(int number) {
  Node& node = at(number);
  const bool is_cut = !network_.connects(number, 0);
  const bool is_alive = node.runs && node.is_connected;
  if (first_ && here_.contains(number)) {
    const bool has_come = !is_alive && network_.is_open(number, 0) && node.to_node_0.empty();
    const bool is_silent = is_frozen(node) && now_ > node.frozen_from + Silence::kMax;
    if ((has_come && one_in(5)) || ((is_cut || !is_alive) && one_in(40)) ||
        (is_silent && one_in(5))) {
      node.to_node_0.clear();
      change(number, false);
    }
  }
  if (!is_alive || is_frozen(node)) return;
  const bool has_ended = !first_ || !here_.contains(number);
  if ((has_ended && network_.is_open(0, number) && one_in(5)) ||
      ((is_cut || has_ended) && one_in(40))) {
    tell("node " + std::to_string(number) + " has lost node 0");
    node.is_connected = false;
    node.to_node.clear();
    node.to_node_0.clear();
    node.returns_until = now_ + (driver_ ? kNode0ReturnTime : seconds(0));
  }
}

// A launcher that has lost node 0 waits for another one, if there may be one, and then ends its
// workers. Node 0 rejects it if it does not wait for it.
void SimulatedJob::step_of_lonely(int number) {
  Node& node = at(number);
  const bool is_rejected = first_ && network_.connects(number, 0) && !expected_.contains(number);
  if (now_ < *node.returns_until && !is_rejected && !node.is_abandoned) return;
  if (!one_in(6)) return;
  tell("node " + std::to_string(number) + " ends without node 0");
  end_launcher(node, true);
}

void SimulatedJob::carry_out_orders(int number) {
  Node& node = at(number);
  if (node.is_connected && network_.is_open(0, number))
    take(node.to_node, [&](const NodeNews& news) { node.elastic->take_news(news, now_); });
  const ElasticOrders orders = node.elastic->advance(now_);
  for (const auto& [local_rank, number_of_worker] : orders.starts)
    start_worker(number, local_rank, number_of_worker);
  if (orders.lost_member) node.lost_epoch = orders.lost_member->epoch;
  for (const int local_rank : orders.kills)
    if (node.processes.contains(local_rank)) end_worker(number, local_rank);
  if (orders.must_leave)
    while (!node.processes.empty()) end_worker(number, node.processes.begin()->first);
  send_what_was_told(number);
  // A node that leaves ends when its workers have ended.
  if (node.elastic->is_over() && node.processes.empty()) {
    tell("node " + std::to_string(number) + " has left");
    end_launcher(node, false);
  }
}

void SimulatedJob::take(std::deque<std::pair<TimePoint, NodeMessage>>& messages,
                        const std::function<void(const NodeNews&)>& taker) const {
  while (!messages.empty() && messages.front().first <= now_) {
    NodeNews news;
    if (const auto* exit = std::get_if<WorkerExit>(&messages.front().second))
      news.exits.push_back(*exit);
    else
      news.messages.push_back(messages.front().second);
    messages.pop_front();
    taker(news);
  }
}

void SimulatedJob::end_old_launchers() {
  std::erase_if(old_launchers_, [this](const std::unique_ptr<Node>& node) {
    return !is_frozen(*node) && one_in(10);
  });
}

// The user of a job without a driver starts a node again.
void SimulatedJob::restart_by_user() {
  for (int number = 1; number < count(); ++number)
    if (!has_launcher(number) && one_in(20))
      start_launcher(number, {.name = "a host", .user = "", .slots = at(number).slots});
}

void SimulatedJob::advance_driver() {
  if (!driver_) return restart_by_user();
  for (const auto& [kind, number, host] : driver_->advance(now_)) {
    using ActionKind = SimulatedDriver::Action::Kind;
    if (kind == ActionKind::kStart) {
      start_launcher(number, host);
      continue;
    }
    Node& node = at(number);
    const bool is_reached = network_.connects(number, 0);
    tell(
        (kind == ActionKind::kKill ? "the driver kills node " : "the driver asks to leave: node ") +
        std::to_string(number));
    if (kind == ActionKind::kKill || !node.runs) {
      node.is_abandoned = true;
      node.end_to_tell.reset();
      if (!node.runs || (is_reached && !is_frozen(node))) end_launcher(node, true);
      driver_->ended(number, true, now_);
    } else if (node.is_leaving) {
      ADD_FAILURE() << "a second SIGTERM ends the workers of node " << number;
    } else if (node.elastic->leave(now_ + seconds(between(5, 30)))) {
      node.is_leaving = true;
    }
  }
}

}  // namespace farandole
