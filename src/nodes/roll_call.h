// RollCall: what node 0 knows about the nodes of a job: which of them have joined, how many workers
// each of them has, and which have ended. It is a pure state machine: it takes events and returns
// what follows from them.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "nodes/node_layout.h"
#include "nodes/node_messages.h"
#include "nodes/node_options.h"

namespace farandole {

// "node 1", "nodes 1-3, 5". The numbers must be in ascending order.
std::string node_list_text(const std::vector<int>& nodes);
// "waiting for node 1 of 2".
std::string waiting_text(const std::vector<int>& missing, int nodes);

class RollCall {
 public:
  // In a new object, only node 0 has joined. `own_hello` describes node 0. If node 0 replaces a
  // lost launcher, the job is complete, and the nodes that took part in it may join again.
  explicit RollCall(const Hello& own_hello, const std::optional<Replacement>& replaces = {});

  struct Verdict {
    std::string rejection;  // why the node cannot take part; empty if it can
    bool ends_job = false;  // whether the job must end, because the nodes contradict each other
    // Whether the node may be accepted if it tries again soon: the elastic job has a node with this
    // number, but that node may be about to leave.
    bool may_change = false;
  };
  // Call it when a launcher has sent its Hello. `address` is the launcher's address, for messages
  // to the user.
  Verdict add_launcher(const Hello& hello, const std::string& address);
  // Whether a node that took part in the job may still join again.
  bool expects_nodes() const { return !expected_.empty(); }
  // Returns the nodes that have not joined again. After this call, these nodes are rejected,
  // because the job has gone on without them.
  std::set<int> stop_expecting() { return std::exchange(expected_, {}); }
  // Call it when the connection to a node that had joined has ended. Before the start, the node may
  // join again; in an elastic job, the node may join again at any time, with as many workers as
  // before. An elastic job may also get new nodes, one after the other.
  void remove_launcher(int node);
  // Call it when all workers of a node have ended.
  void record_end(int node, int exit_code);
  // Call it when the group of an elastic job is formed of the workers in these slots. The job goes
  // on without the nodes that have none of these slots, so failures of these nodes do not fail the
  // job.
  void group_formed(const std::vector<std::uint32_t>& slots);

  // Whether all nodes have been in the job at the same time. From then on, no node can join any
  // more, except in an elastic job.
  bool is_complete() const { return is_complete_; }
  std::vector<int> missing_nodes() const;
  // The number of workers by node. Call it when is_complete().
  std::vector<int> worker_counts() const;
  // The ports for TensorFlow by rank. Call it when is_complete().
  std::vector<std::uint32_t> tensorflow_ports() const;
  // The nodes with running workers. A node that has left does not count.
  std::vector<int> running_nodes() const;
  // Empty while a node is running. Then: whether all nodes have ended with exit code 0. An elastic
  // job can succeed without the nodes that have left.
  std::optional<bool> outcome() const;
  bool has_ended(int node) const { return at(node).exit_code.has_value(); }
  // Whether a failure of the node makes the job fail.
  bool is_needed(int node) const { return at(node).is_needed; }
  std::string name(int node) const;  // such as "node 1 (hen)"

 private:
  struct Node {
    bool is_present = false;
    int workers = 0;
    std::string host{};
    std::vector<std::uint32_t> tensorflow_ports{};
    std::string address{};
    std::optional<int> exit_code{};
    bool is_needed = true;  // false: the last group has no worker of this node
  };

  const Node& at(int node) const { return nodes_.at(static_cast<std::size_t>(node)); }
  Node& at(int node) { return nodes_.at(static_cast<std::size_t>(node)); }
  int nodes() const { return static_cast<int>(nodes_.size()); }
  std::string version_conflict_of(const Hello& hello) const;
  std::string rejection_of(const Hello& hello) const;
  std::string size_conflict_of(const Hello& hello) const;
  std::string flag_conflict_of(const Hello& hello) const;

  std::vector<Node> nodes_;
  std::string version_;
  std::set<int> expected_;  // the Replacement::nodes that have not joined again yet
  bool uses_jax_;
  bool is_elastic_;
  bool is_complete_ = false;
};

}  // namespace farandole
