// For tests: a NodeLink that has no connections and only records messages and reports.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "nodes/node_link.h"

namespace farandole {

class NodeLinkInTest final : public NodeLink {
 public:
  Result<NodeEvents> advance(TimePoint /*now*/) override { return NodeEvents(); }
  std::vector<SocketAddress> listening_addresses() const override { return {}; }
  Endpoint endpoint() const override { return {}; }
  const std::optional<Start>& start_message() const override { return start; }
  void report_exit(const WorkerExit& /*exit*/) override {}
  void report_failing(const NodeFailure& failure) override { failures.push_back(failure); }
  void report_end(int exit_code, const std::vector<std::string>& /*report*/) override {
    own_exit_code = exit_code;
  }
  void tell(const NodeMessage& message) override { sent_messages.emplace_back(-1, message); }
  void tell_node(int node, const NodeMessage& message) override {
    sent_messages.emplace_back(node, message);
  }
  bool is_connected(int node) const override { return !disconnected_nodes.contains(node); }
  bool has_lost_node_0() const override { return false; }
  std::optional<bool> outcome() const override { return job_outcome; }
  std::optional<JobOver> job_over() const override { return received_job_over; }
  int descriptor() const override { return -1; }
  TimePoint deadline() const override { return TimePoint::max(); }

  std::vector<std::pair<int, NodeMessage>> sent_messages;  // with the node; −1: sent by tell()
  std::set<int> disconnected_nodes;                        // nodes that are not connected
  std::optional<Start> start;
  std::vector<NodeFailure> failures;  // report_failing()
  std::optional<int> own_exit_code;   // report_end()
  std::optional<bool> job_outcome = true;
  std::optional<JobOver> received_job_over;
};

}  // namespace farandole
