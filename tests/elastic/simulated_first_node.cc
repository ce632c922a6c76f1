// Node 0 of a simulated job: its launcher, and those that replace it.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "simulated_job.h"

namespace farandole {

using std::chrono::milliseconds;

void SimulatedJob::change(int number, bool is_here, bool has_begun) {
  tell("node " + std::to_string(number) + (is_here ? " takes part" : " is lost"));
  if (is_here)
    here_.insert(number);
  else
    here_.erase(number);
  expected_.erase(number);
  NodeNews news;
  news.changes.push_back(
      {.node = number, .is_here = is_here, .has_begun = has_begun, .why = "gone"});
  first_->take_news(news, now_);
  write_line([number, is_here, now = now_](SimulatedDriver& driver) {
    is_here ? driver.joined(number, now) : driver.lost(number, now);
  });
}

// The launcher of node 0 may be killed before the driver has read this line.
void SimulatedJob::write_line(std::function<void(SimulatedDriver&)> line) {
  if (driver_) lines_.push_back(std::move(line));
}

void SimulatedJob::pass_lines_on() {
  for (const auto& line : std::exchange(lines_, {})) line(*driver_);
}

void SimulatedJob::advance_node_0() {
  if (!first_) return;
  pass_lines_on();
  const ElasticOrders orders = first_->advance(now_);
  for (const std::string& notice : orders.notices) tell(notice);
  for (auto& [to, message] : std::exchange(link_.told, {}))
    for (const int number : here_)
      if (at(number).is_connected && (to == -1 || to == number))
        at(number).to_node.emplace_back(arrival(number), message);
  if (orders.group_formed) {
    epoch_ = first_->epoch();
    ++counts_.epochs;
    write_line([epoch = epoch_](SimulatedDriver& driver) { driver.formed(epoch); });
    check_new_group();
  }
  for (const auto& [local_rank, number] : orders.starts) start_worker(0, local_rank, number);
  if (orders.lost_member) at(0).lost_epoch = orders.lost_member->epoch;
  for (const int local_rank : orders.kills)
    if (at(0).processes.contains(local_rank)) end_worker(0, local_rank);
  if (!orders.end.empty() && !is_over_) check_end(orders.end);
  is_over_ = is_over_ || !orders.end.empty();
  if (one_in(2)) pass_lines_on();
}

// Node 0's launcher is killed, and with it the Store. Messages on their way may still arrive.
void SimulatedJob::lose_first() {
  if (!first_ || !driver_) return;
  tell("the launcher of node 0 is lost");
  counts_.losses_while_taking_over += is_taking_over() ? 1 : 0;
  first_.reset();
  at(0).store.reset();
  link_.told.clear();
  lines_.clear();
  here_.clear();
  expected_.clear();
  told_nobody_is_expected_ = true;
  first_returns_at_ = now_ + milliseconds(between(0, 1500));
  for (const auto& node : nodes_) {
    node->to_node_0.clear();
    const bool arrives = node->runs && node->is_connected && one_in(2);
    for (auto& [at, message] : node->to_node) at = now_;
    if (arrives)
      take(node->to_node, [&](const NodeNews& news) { node->elastic->take_news(news, now_); });
    node->to_node.clear();
  }
}

// The driver starts another launcher in place of the lost one.
void SimulatedJob::replace_first() {
  if (first_ || now_ < first_returns_at_) return;
  const Replacement replacement = driver_->replace_first();
  ++stores_;
  ++counts_.takeovers;
  at(0).store = StoreServer::create("the launcher").value();
  roll_.assign(replacement.workers.begin(), replacement.workers.end());
  link_.start->workers = replacement.workers;
  NodeLayout layout;
  layout.workers = roll_;
  options_.workers = layout.size();
  first_.emplace(options_, layout, job_store(), &link_, now_, replacement);
  expected_ = {replacement.nodes.begin(), replacement.nodes.end()};
  first_waits_until_ = now_ + kReplacementTime;
  told_nobody_is_expected_ = false;
  known_group_ = 0;
  tell("node 0 has a new launcher; the driver knows epoch " + std::to_string(replacement.epoch));
}

// The launcher of a node has waited for node 0, and has found the new one.
void SimulatedJob::find_node_0(int number) {
  Node& node = at(number);
  const bool waits = node.runs && !node.is_connected && node.returns_until;
  if (!waits || is_frozen(node) || !expected_.contains(number) || now_ >= *node.returns_until ||
      node.is_abandoned || !network_.connects(number, 0) || one_in(4))
    return;
  node.is_connected = true;
  node.returns_until.reset();
  counts_.returns_after_rejection += given_up_.contains(number) ? 1 : 0;
  known_group_ = std::max(known_group_, node.elastic->epoch());
  change(number, true, true);
  NodeNews news;
  news.node_0_is_back = true;
  node.elastic->take_news(news, now_);
}

void SimulatedJob::tell_if_nobody_is_expected() {
  if (told_nobody_is_expected_ || (now_ < first_waits_until_ && !expected_.empty())) return;
  told_nobody_is_expected_ = true;
  counts_.late_nodes += static_cast<int>(expected_.size());
  given_up_ = std::exchange(expected_, {});
  for (const int number : given_up_) change(number, false);
  NodeNews news;
  news.nobody_is_expected = true;
  first_->take_news(news, now_);
}

}  // namespace farandole
