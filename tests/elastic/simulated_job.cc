// The start and the steps of a simulated job, and the launchers of all nodes except node 0.
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
  concurrent_launchers += other.concurrent_launchers;
  rejected_nodes += other.rejected_nodes;
  groups_with_frozen_members += other.groups_with_frozen_members;
  node_numbers_reused += other.node_numbers_reused;
  ends_in_doubt += other.ends_in_doubt;
}

SimulatedJob::SimulatedJob(unsigned seed, Kind kind, bool prints_events)
    : random_(seed), kind_(kind), prints_events_(prints_events) {
  const bool has_driver = kind != Kind::kWithoutDriver;
  const int nodes = random_between(kind == Kind::kDiscovery ? 2 : 1, 3) + (has_driver ? 1 : 0);
  NodeLayout layout;
  layout.workers.clear();
  std::vector<HostEntry> hosts{{.name = "of node 0", .user = "", .slots = 0}};
  for (int node = 0; node < nodes; ++node) {
    workers_of_nodes_.push_back(
        has_driver && node == 0 ? 0
                                : random_between(1, node == 0 || kind == Kind::kDiscovery ? 2 : 3));
    if (node > 0) hosts.push_back(new_host(workers_of_nodes_.back()));
  }
  layout.workers = workers_of_nodes_;
  if (has_driver) driver_.emplace(hosts, kind == Kind::kDiscovery);
  options_.workers = layout.size();
  options_.workers_min = random_between(1, std::min(2, layout.size()));
  options_.workers_max = random_between(layout.size(), 9);
  options_.shortage_max = seconds(1'000'000);
  link_.start.emplace();
  for (int node = 0; node < nodes; ++node) {
    link_.start->workers.push_back(
        static_cast<std::uint32_t>(workers_of_nodes_[static_cast<std::size_t>(node)]));
    nodes_.push_back(std::make_unique<Node>());
    node_at(node).slots = workers_of_nodes_[static_cast<std::size_t>(node)];
    node_at(node).is_running = node_at(node).is_connected = true;
  }
  for (int node = 1; node < nodes; ++node) {
    begin_node(node, false);
    connected_nodes_.insert(node);
  }
  node_at(0).store = StoreServer::create("the launcher").value();
  first_node_.emplace(options_, layout, job_store(), &link_, now_);
  for (int node = 0; node < nodes; ++node)
    for (int i = 0; i < node_at(node).slots; ++i) start_worker(node, i, first_slot(node) + i);
}

void SimulatedJob::print_event(const std::string& text) const {
  if (!prints_events_) return;
  std::printf("%8.3f %s\n",
              std::chrono::duration<double>(now_.time_since_epoch() - seconds(1000)).count(),
              text.c_str());
}

int SimulatedJob::first_slot(int node) const {
  int slot = 0;
  for (int earlier_node = 0; earlier_node < node; ++earlier_node)
    slot += workers_of_nodes_.at(static_cast<std::size_t>(earlier_node));
  return slot;
}

void SimulatedJob::begin_node(int number, bool has_begun) {
  Node& node = node_at(number);
  node.store = StoreServer::create("a launcher").value();
  node.link = std::make_unique<NodeLinkInTest>();
  NodeLayout layout;
  layout.workers = workers_of_nodes_;
  layout.node = number;
  node.elastic_node =
      std::make_unique<OtherElasticNode>(layout, *node.store, *node.link, has_begun);
}

// A launcher is started. An earlier launcher of this node may still run, because it has not noticed
// yet that it was lost.
void SimulatedJob::start_launcher(int number, const HostEntry& host) {
  print_event("a launcher of node " + std::to_string(number) + " is started on " + host.name);
  if (number == node_count()) nodes_.push_back(std::make_unique<Node>());
  auto& current_node = nodes_.at(static_cast<std::size_t>(number));
  if (current_node->is_running) {
    current_node->is_connected = false;
    superseded_launchers_.push_back(std::exchange(current_node, std::make_unique<Node>()));
    ++counts_.concurrent_launchers;
  }
  *current_node = Node{};
  current_node->slots = host.slots;
  current_node->host = host.name;
  current_node->joins_at = now_ + milliseconds(random_between(50, 1500));
}

// Node 0 accepts or rejects the launcher, as src/nodes/roll_call.cc does.
void SimulatedJob::try_to_join(int number) {
  Node& node = node_at(number);
  if (now_ < *node.joins_at) return;
  const bool is_late = now_ > *node.joins_at + seconds(10);
  const bool must_wait =
      !first_node_ || !network_.connects(number, 0) || connected_nodes_.contains(number);
  const bool is_broken =
      broken_hosts_.contains(node.host) || (starts_may_fail_ && happens_one_in(40));
  const bool can_start = !is_late && !is_broken;
  if (must_wait && can_start) return;
  const auto index = static_cast<std::size_t>(number);
  const bool is_acceptable =
      index == workers_of_nodes_.size() ||
      (index < workers_of_nodes_.size() && workers_of_nodes_[index] == node.slots);
  if (!can_start || !is_acceptable) {
    print_event("node " + std::to_string(number) +
                (is_acceptable ? " could not start" : " is rejected"));
    counts_.rejected_nodes += is_acceptable ? 0 : 1;
    return end_launcher(node, true);
  }
  node.joins_at.reset();
  if (index == workers_of_nodes_.size()) {
    workers_of_nodes_.push_back(node.slots);
    link_.start->workers.push_back(static_cast<std::uint32_t>(node.slots));
  }
  node.is_running = node.is_connected = true;
  begin_node(number, true);
  report_node_change(number, true);
}

// The launcher ends, and all its workers end at the same time.
void SimulatedJob::end_launcher(Node& node, bool has_failed) {
  node.is_running = node.is_connected = node.is_leaving = false;
  node.joins_at.reset();
  node.waits_for_node_0_until.reset();
  node.processes.clear();
  node.to_node.clear();
  if (!node.is_abandoned) node.unreported_end_failed = has_failed;
}

void SimulatedJob::kill_launcher(int number) {
  if (happens_one_in(2)) node_at(number).to_node_0.clear();
  end_launcher(node_at(number), true);
}

void SimulatedJob::start_worker(int node, int local_rank, int number) {
  auto& processes = node_at(node).processes;
  ASSERT_FALSE(processes.contains(local_rank)) << "the slot has a worker already";
  processes[local_rank] = {.number = number,
                           .slot = first_slot(node) + local_rank,
                           .node = node,
                           .home_node = &node_at(node)};
}

// A worker has ended and was reaped by its launcher.
void SimulatedJob::end_worker(int node, int local_rank) {
  Node& node_of_worker = node_at(node);
  const int slot = first_slot(node) + local_rank;
  node_of_worker.processes.erase(local_rank);
  if (node == 0) return first_node_->worker_ended(local_rank, false, "a worker", now_);
  node_of_worker.elastic_node->worker_ended(local_rank, false, "a worker", now_);
  send_link_messages(node);
  if (node_of_worker.is_connected)
    send_to_node_0(node, WorkerExit{static_cast<std::uint32_t>(slot), "a worker", false});
}

void SimulatedJob::send_link_messages(int number) {
  for (auto& [to, message] : std::exchange(node_at(number).link->sent_messages, {}))
    if (node_at(number).is_connected) send_to_node_0(number, message);
}

void SimulatedJob::set_stopped(int node, int local_rank, bool is_stopped) {
  Process& process = node_at(node).processes.at(local_rank);
  if (std::exchange(process.is_stopped, is_stopped) == is_stopped) return;
  ElasticNode& elastic_node = node == 0 ? static_cast<ElasticNode&>(*first_node_)
                                        : static_cast<ElasticNode&>(*node_at(node).elastic_node);
  if (is_stopped)
    elastic_node.worker_stopped(local_rank, now_);
  else
    elastic_node.worker_continued(local_rank);
}

void SimulatedJob::step() {
  now_ += milliseconds(random_between(1, 200));
  network_.advance(now_);
  restore_hosts();
  advance_driver();
  replace_node_0_launcher();
  for (int number = 1; number < node_count() && first_node_; ++number) reconnect_to_node_0(number);
  if (first_node_) stop_expecting_nodes_when_due();
  for (int number = 1; number < node_count(); ++number) step_node(number);
  end_concurrent_launchers();
  advance_node_0();
  for_all_processes([this](Process& process) {
    if (!process.is_stopped && !is_frozen(*process.home_node) &&
        happens_one_in(network_.is_slow(process.node) ? 30 : 3))
      step_process(process);
  });
  check_training_groups();
}

void SimulatedJob::step_node(int number) {
  Node& node = node_at(number);
  if (node.joins_at && !is_frozen(node)) try_to_join(number);
  notice_losses(number);
  if (node.is_running && !node.is_connected && !is_frozen(node)) step_disconnected_node(number);
  if (node.unreported_end_failed && driver_ && network_.connects(number, 0)) {
    driver_->launcher_ended(number, *node.unreported_end_failed, now_);
    node.unreported_end_failed.reset();
  }
  if (first_node_ && connected_nodes_.contains(number) && network_.is_open(number, 0))
    deliver_due_messages(node.to_node_0, [this](const NodeEvents& news) {
      for (const NodeMessage& message : news.messages)
        if (const auto* leaves = std::get_if<NodeLeaves>(&message))
          send_to_driver([number_of = static_cast<int>(leaves->node)](SimulatedDriver& driver) {
            driver.node_leaves(number_of);
          });
      first_node_->handle_events(news, now_);
    });
  if (!node.is_running || is_frozen(node) || (network_.is_slow(number) && !happens_one_in(10)))
    return;
  carry_out_orders(number);
}

// The two sides notice at different times that a connection has ended. If the network is cut, they
// notice the end after some seconds.
void SimulatedJob::notice_losses(int number) {
  Node& node = node_at(number);
  const bool is_cut = !network_.connects(number, 0);
  const bool is_alive = node.is_running && node.is_connected;
  if (first_node_ && connected_nodes_.contains(number)) {
    const bool end_has_arrived = !is_alive && network_.is_open(number, 0) && node.to_node_0.empty();
    const bool is_silent = is_frozen(node) && now_ > node.frozen_from + Silence::kTimeMax;
    if ((end_has_arrived && happens_one_in(5)) || ((is_cut || !is_alive) && happens_one_in(40)) ||
        (is_silent && happens_one_in(5))) {
      node.to_node_0.clear();
      report_node_change(number, false);
    }
  }
  if (!is_alive || is_frozen(node)) return;
  const bool has_ended = !first_node_ || !connected_nodes_.contains(number);
  if ((has_ended && network_.is_open(0, number) && happens_one_in(5)) ||
      ((is_cut || has_ended) && happens_one_in(40))) {
    print_event("node " + std::to_string(number) + " has lost node 0");
    node.is_connected = false;
    node.to_node.clear();
    node.to_node_0.clear();
    node.waits_for_node_0_until = now_ + (driver_ ? kNode0ReturnTimeout : seconds(0));
  }
}

// A launcher that has lost node 0 waits for a new launcher of node 0, if the job has a driver. It
// ends its workers if the wait is over, or if the new launcher rejects it because it no longer
// expects this node.
void SimulatedJob::step_disconnected_node(int number) {
  Node& node = node_at(number);
  const bool is_rejected =
      first_node_ && network_.connects(number, 0) && !expected_nodes_.contains(number);
  if (now_ < *node.waits_for_node_0_until && !is_rejected && !node.is_abandoned) return;
  if (!happens_one_in(6)) return;
  print_event("node " + std::to_string(number) + " ends without node 0");
  end_launcher(node, true);
}

void SimulatedJob::carry_out_orders(int number) {
  Node& node = node_at(number);
  if (node.is_connected && network_.is_open(0, number))
    deliver_due_messages(node.to_node, [&](const NodeEvents& news) {
      node.elastic_node->handle_events(news, now_);
    });
  const ElasticOrders orders = node.elastic_node->advance(now_);
  for (const auto& [local_rank, number_of_worker] : orders.starts)
    start_worker(number, local_rank, number_of_worker);
  if (orders.lost_member) node.lost_epoch = orders.lost_member->epoch;
  for (const int local_rank : orders.kills)
    if (node.processes.contains(local_rank)) end_worker(number, local_rank);
  if (orders.must_leave)
    while (!node.processes.empty()) end_worker(number, node.processes.begin()->first);
  send_link_messages(number);
  // A leaving node ends when all its workers have ended.
  if (node.elastic_node->is_over() && node.processes.empty()) {
    print_event("node " + std::to_string(number) + " has left");
    end_launcher(node, false);
  }
}

void SimulatedJob::deliver_due_messages(
    std::deque<std::pair<TimePoint, NodeMessage>>& messages,
    const std::function<void(const NodeEvents&)>& receiver) const {
  while (!messages.empty() && messages.front().first <= now_) {
    NodeEvents news;
    if (const auto* exit = std::get_if<WorkerExit>(&messages.front().second))
      news.exits.push_back(*exit);
    else
      news.messages.push_back(messages.front().second);
    messages.pop_front();
    receiver(news);
  }
}

void SimulatedJob::end_concurrent_launchers() {
  std::erase_if(superseded_launchers_, [this](const std::unique_ptr<Node>& node) {
    return !is_frozen(*node) && happens_one_in(10);
  });
}

// In a job without a driver, the user starts lost nodes again.
void SimulatedJob::restart_by_user() {
  for (int number = 1; number < node_count(); ++number)
    if (!has_launcher(number) && happens_one_in(20))
      start_launcher(number, {.name = "a host", .user = "", .slots = node_at(number).slots});
}

void SimulatedJob::advance_driver() {
  if (!driver_) return restart_by_user();
  for (const auto& [kind, number, host] : driver_->advance(now_)) {
    using ActionKind = SimulatedDriver::Action::Kind;
    if (kind == ActionKind::kStart) {
      start_launcher(number, host);
      continue;
    }
    Node& node = node_at(number);
    const bool is_reached = network_.connects(number, 0);
    print_event(
        (kind == ActionKind::kKill ? "the driver kills node " : "the driver asks to leave: node ") +
        std::to_string(number));
    if (kind == ActionKind::kKill || !node.is_running) {
      node.is_abandoned = true;
      node.unreported_end_failed.reset();
      if (!node.is_running || (is_reached && !is_frozen(node))) end_launcher(node, true);
      driver_->launcher_ended(number, true, now_);
    } else if (node.is_leaving) {
      ADD_FAILURE() << "a second SIGTERM ends the workers of node " << number;
    } else if (node.elastic_node->begin_to_leave(now_ + seconds(random_between(5, 30)))) {
      node.is_leaving = true;
    }
  }
}

}  // namespace farandole
