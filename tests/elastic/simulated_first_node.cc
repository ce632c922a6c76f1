// Node 0 of a simulated job: its first launcher, and the launchers that replace it.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "simulated_job.h"

namespace farandole {

using std::chrono::milliseconds;

void SimulatedJob::report_node_change(int number, bool is_present, bool has_begun) {
  print_event("node " + std::to_string(number) + (is_present ? " takes part" : " is lost"));
  if (is_present)
    connected_nodes_.insert(number);
  else
    connected_nodes_.erase(number);
  expected_nodes_.erase(number);
  NodeEvents news;
  news.changes.push_back(
      {.node = number, .is_present = is_present, .has_begun = has_begun, .why = "gone"});
  first_node_->handle_events(news, now_);
  send_to_driver([number, is_present, now = now_](SimulatedDriver& driver) {
    is_present ? driver.node_joined(number, now) : driver.node_lost(number, now);
  });
}

// Node 0's launcher may be killed before the driver has read this message. In this case, the
// message is lost.
void SimulatedJob::send_to_driver(std::function<void(SimulatedDriver&)> message_to_driver) {
  if (driver_) messages_to_driver_.push_back(std::move(message_to_driver));
}

void SimulatedJob::deliver_messages_to_driver() {
  for (const auto& message_to_driver : std::exchange(messages_to_driver_, {}))
    message_to_driver(*driver_);
}

void SimulatedJob::advance_node_0() {
  if (!first_node_) return;
  deliver_messages_to_driver();
  const ElasticOrders orders = first_node_->advance(now_);
  for (const std::string& notice : orders.notices) print_event(notice);
  for (auto& [destination, message] : std::exchange(link_.sent_messages, {}))
    for (const int number : connected_nodes_)
      if (node_at(number).is_connected && (destination == -1 || destination == number))
        node_at(number).to_node.emplace_back(arrival_time(number), message);
  if (orders.group_formed) {
    epoch_ = first_node_->epoch();
    ++counts_.epochs;
    send_to_driver([epoch = epoch_](SimulatedDriver& driver) { driver.group_formed(epoch); });
    check_new_group();
  }
  for (const auto& [local_rank, number] : orders.starts) start_worker(0, local_rank, number);
  if (orders.lost_member) node_at(0).lost_epoch = orders.lost_member->epoch;
  for (const int local_rank : orders.kills)
    if (node_at(0).processes.contains(local_rank)) end_worker(0, local_rank);
  if (!orders.end.empty() && !is_over_) check_end(orders.end);
  is_over_ = is_over_ || !orders.end.empty();
  if (happens_one_in(2)) deliver_messages_to_driver();
}

// Node 0's launcher is killed, and its Store is lost. Messages that this launcher has sent to the
// other nodes may still arrive.
void SimulatedJob::lose_node_0_launcher() {
  if (!first_node_ || !driver_) return;
  print_event("the launcher of node 0 is lost");
  counts_.losses_while_taking_over += is_taking_over() ? 1 : 0;
  first_node_.reset();
  node_at(0).store.reset();
  link_.sent_messages.clear();
  messages_to_driver_.clear();
  connected_nodes_.clear();
  expected_nodes_.clear();
  has_stopped_expecting_nodes_ = true;
  node_0_returns_at_ = now_ + milliseconds(random_between(0, 1500));
  for (const auto& node : nodes_) {
    node->to_node_0.clear();
    const bool messages_arrive = node->is_running && node->is_connected && happens_one_in(2);
    for (auto& [arrival, message] : node->to_node) arrival = now_;
    if (messages_arrive)
      deliver_due_messages(node->to_node, [&](const NodeEvents& news) {
        node->elastic_node->handle_events(news, now_);
      });
    node->to_node.clear();
  }
}

// The driver starts a new launcher, which replaces the lost one.
void SimulatedJob::replace_node_0_launcher() {
  if (first_node_ || now_ < node_0_returns_at_) return;
  const Replacement replacement = driver_->replace_node_0_launcher();
  ++launchers_lost_;
  ++counts_.takeovers;
  node_at(0).store = StoreServer::create("the launcher").value();
  workers_of_nodes_.assign(replacement.workers.begin(), replacement.workers.end());
  link_.start->workers = replacement.workers;
  NodeLayout layout;
  layout.workers = workers_of_nodes_;
  options_.workers = layout.size();
  first_node_.emplace(options_, layout, job_store(), &link_, now_, replacement);
  expected_nodes_ = {replacement.nodes.begin(), replacement.nodes.end()};
  node_0_waits_until_ = now_ + kReplacementTimeout;
  has_stopped_expecting_nodes_ = false;
  newest_known_group_ = 0;
  print_event("node 0 has a new launcher; the driver knows epoch " +
              std::to_string(replacement.epoch));
}

// If the launcher of this node has lost node 0 and can reach the new launcher of node 0, connects
// the two launchers in three of four cases.
void SimulatedJob::reconnect_to_node_0(int number) {
  Node& node = node_at(number);
  const bool is_waiting = node.is_running && !node.is_connected && node.waits_for_node_0_until;
  if (!is_waiting || is_frozen(node) || !expected_nodes_.contains(number) ||
      now_ >= *node.waits_for_node_0_until || node.is_abandoned || !network_.connects(number, 0) ||
      happens_one_in(4))
    return;
  node.is_connected = true;
  node.waits_for_node_0_until.reset();
  counts_.returns_after_rejection += nodes_given_up_.contains(number) ? 1 : 0;
  newest_known_group_ = std::max(newest_known_group_, node.elastic_node->epoch());
  report_node_change(number, true, true);
  NodeEvents news;
  news.node_0_is_back = true;
  node.elastic_node->handle_events(news, now_);
}

void SimulatedJob::stop_expecting_nodes_when_due() {
  if (has_stopped_expecting_nodes_ || (now_ < node_0_waits_until_ && !expected_nodes_.empty()))
    return;
  has_stopped_expecting_nodes_ = true;
  counts_.late_nodes += static_cast<int>(expected_nodes_.size());
  nodes_given_up_ = std::exchange(expected_nodes_, {});
  for (const int number : nodes_given_up_) report_node_change(number, false);
  NodeEvents news;
  news.no_more_nodes_expected = true;
  first_node_->handle_events(news, now_);
}

}  // namespace farandole
