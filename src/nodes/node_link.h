// NodeLink: a launcher's connection to the launchers of the other nodes of its job. Node 0 listens
// at the endpoint of the job (FirstNode); the launchers of the other nodes dial this endpoint
// (OtherNode).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/time_point.h"
#include "farandole/status.h"
#include "network/connection.h"
#include "nodes/node_messages.h"
#include "nodes/node_options.h"

namespace farandole {

// All workers of another node have ended.
struct NodeEnd {
  int node = 0;
  int exit_code = 0;
  std::vector<std::string> report;  // how the node's part of the job failed: lines for the user
};

// Returns the failure of the first of these nodes whose own workers have failed (it has a report).
// If there is none, returns the failure of the first node that has failed; empty if none has
// failed.
std::optional<FailedNode> first_failure(const std::vector<NodeEnd>& ends);

// A node has left an elastic job, or has joined it, perhaps again.
struct NodeChange {
  int node = 0;
  bool is_present = false;
  bool has_begun = false;  // the node took part before, and will send its NodeState
  std::string why{};       // why the node has left, for the user
};

// The events since the last call.
struct NodeEvents {
  std::vector<std::string> notices;  // lines for the user
  std::vector<FailedNode> failures;  // failures of other nodes' parts of the job
  std::vector<NodeEnd> ends;         // node 0: other nodes whose workers have all ended
  std::vector<WorkerExit> exits;     // node 0: workers of other nodes that have ended
  std::vector<NodeChange> changes;   // node 0 of an elastic job: the earliest first
  std::vector<std::unique_ptr<Connection>> workers;  // node 0: workers that have connected
  bool no_more_nodes_expected = false;  // new launcher of node 0: it now rejects lost nodes
  bool node_0_is_back = false;          // another node: node 0 has a new launcher
  // All other messages of the other launchers: WorkersWanted, WorkerStart …
  std::vector<NodeMessage> messages;
};

// One thread may use it. No function blocks, except that a look-up of the endpoint's name may
// block.
class NodeLink {
 public:
  virtual ~NodeLink() = default;

  // Does everything that can be done now: connects, sends, and handles messages that have arrived.
  // Errors are final, occur only before start_message() is set, and have texts for users: kFixCall
  // if the nodes contradict each other, kStop if a node did not join in time.
  virtual Result<NodeEvents> advance(TimePoint now) = 0;
  // Node 0: the addresses at which it listens. Empty until node 0 listens, and on other nodes.
  virtual std::vector<SocketAddress> listening_addresses() const = 0;
  // Where the workers of this host reach node 0. Call it when start_message() is set.
  virtual Endpoint endpoint() const = 0;
  // Node 0's message that all nodes have joined; empty until then.
  virtual const std::optional<Start>& start_message() const = 0;

  // These functions tell the other nodes what happens here. Call them when start_message() is set.
  virtual void report_exit(const WorkerExit& exit) = 0;  // also for a worker that could not start
  virtual void report_failing(const NodeFailure& failure) = 0;  // at most once
  // At most once. If this part of the job has failed, `report` has lines that tell the user how.
  virtual void report_end(int exit_code, const std::vector<std::string>& report) = 0;
  // Sends a question or an answer. Node 0 sends it to each other node; each other node sends it to
  // node 0. Call it when start_message() is set.
  virtual void tell(const NodeMessage& message) = 0;
  // Node 0: sends a message to one other node.
  virtual void tell_node(int node, const NodeMessage& message) = 0;
  // Whether messages can reach `node`. On other nodes than node 0, `node` must be 0.
  virtual bool is_connected(int node) const = 0;
  // Whether the connection to node 0 has ended before node 0 said that the job was over.
  virtual bool has_lost_node_0() const = 0;
  // Empty while any node is running. Afterwards, says whether the job has succeeded on all nodes.
  // The other nodes learn this from node 0's message JobOver.
  virtual std::optional<bool> outcome() const = 0;
  // On another node than node 0: node 0's message that the job is over. Empty before that, and on
  // node 0.
  virtual std::optional<JobOver> job_over() const = 0;

  // To sleep, poll descriptor() for POLLIN, up to deadline().
  virtual int descriptor() const = 0;
  virtual TimePoint deadline() const = 0;
};

}  // namespace farandole
