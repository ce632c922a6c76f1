// The messages between the launchers of a job's nodes. Node 0 has one connection to each other
// node. "→ 0" marks messages to node 0, and "0 →" marks messages from node 0.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/bytes.h"

namespace farandole {

// → 0: the first message. All numbers are checked by RollCall.
struct Hello {
  std::uint32_t node = 0;
  std::uint32_t nodes = 0;
  std::uint32_t workers = 0;
  std::string host;
  std::string version{};  // of Farandole
  // The ports of the sender's workers for TensorFlow, by local rank; empty without --tf-config.
  std::vector<std::uint32_t> tensorflow_ports{};
  bool uses_jax = false;          // --jax
  bool is_elastic = false;        // --min-workers
  std::uint32_t master_port = 0;  // MASTER_PORT, reserved by the sender; 0: none
  // Whether the sender takes part in the running elastic job, and has lost the earlier launcher of
  // node 0.
  bool has_begun = false;
  friend bool operator==(const Hello&, const Hello&) = default;
};

// 0 →: the node cannot take part, because of `why`. Then the connection ends.
struct NodeRejection {
  std::string why;
  friend bool operator==(const NodeRejection&, const NodeRejection&) = default;
};

// 0 →: the job waits for these nodes.
struct MissingNodes {
  std::vector<std::uint32_t> missing;
  friend bool operator==(const MissingNodes&, const MissingNodes&) = default;
};

// 0 →: all nodes have joined, so start the workers.
struct Start {
  std::vector<std::uint32_t> workers;  // by node
  // MASTER_PORT, reserved on the first node that has workers; 0: none.
  std::uint32_t master_port = 0;
  std::string master_address{};  // where this port is reserved; empty: on node 0
  std::uint32_t jax_port = 0;    // the port of JAX's coordinator on node 0; 0: without --jax
  // For each rank: where TensorFlow's server listens. Both lists are empty without --tf-config.
  std::vector<std::uint32_t> tensorflow_ports{};
  std::vector<std::string> addresses{};  // each node's address that node 0 sees; empty for node 0
  // Whether the job is elastic and has begun. Then the receiver waits for WorkerStart messages.
  bool has_begun = false;
  friend bool operator==(const Start&, const Start&) = default;
};

// → 0: how a worker of the sender has ended.
struct WorkerExit {
  std::uint32_t rank = 0;  // in an elastic job, the slot of the worker
  std::string how_it_ended;
  bool succeeded = false;  // whether the exit code was 0
  friend bool operator==(const WorkerExit&, const WorkerExit&) = default;
};

// Why a node's part of the job fails or was told to end.
struct NodeFailure {
  std::string why{};                           // for the user
  std::optional<std::uint32_t> rank{};         // the first rank of this node that failed or left
  std::optional<std::uint32_t> blamed_rank{};  // a rank of another node, if it made `rank` fail
  std::uint32_t signal = 0;                    // the signal that has asked the node to end; 0: none
  std::uint32_t first_rank = 0;                // the lowest rank of this node
  std::uint32_t ranks = 0;                     // how many ranks this node has
  // Whether a rank of this node is the cause: the rank has failed, and no rank of another node has
  // made it fail.
  bool is_root_cause() const { return rank && !blamed_rank; }
  // Whether this failure has caused the other failure. If several ranks of this node have failed,
  // the other node may blame one of them that is not `rank`. If a signal has ended this node, or if
  // the node is lost, there is no `rank`, but the other node may blame any rank of this node.
  bool has_caused(const NodeFailure& other) const {
    if (!other.blamed_rank) return false;
    const bool blames_this_node =
        *other.blamed_rank >= first_rank && *other.blamed_rank - first_rank < ranks;
    return rank == other.blamed_rank || (blames_this_node && !blamed_rank);
  }
  friend bool operator==(const NodeFailure&, const NodeFailure&) = default;
};

// Both ways: a node's part of the job fails or was told to end. Node 0 passes the message on to the
// other nodes.
struct FailedNode {
  std::uint32_t node = 0;
  NodeFailure failure;
  friend bool operator==(const FailedNode&, const FailedNode&) = default;
};

// → 0: all workers of the sender have ended. `exit_code` is the exit code of the sender's launcher.
struct NodeEnded {
  std::uint32_t exit_code = 0;
  std::vector<std::string> report{};  // lines for the user: how the node's part of the job failed
  friend bool operator==(const NodeEnded&, const NodeEnded&) = default;
};

// The message must fit into one frame. If the report is too long, a note replaces lines in its
// middle.
NodeEnded make_node_ended(int exit_code, const std::vector<std::string>& report);

// 0 →: all nodes have ended. `exit_code` is the exit code of the job: that of the first failure, or
// 0 if all nodes have succeeded. `first_failed_node` is the node of the first failure, if there is
// one.
struct JobOver {
  std::uint32_t exit_code = 0;
  std::uint32_t first_failed_node = 0;
  friend bool operator==(const JobOver&, const JobOver&) = default;
};

// 0 →: what do the workers of the receiver do now?
struct WorkersWanted {
  friend bool operator==(const WorkersWanted&, const WorkersWanted&) = default;
};

// → 0: what a worker of the sender does now, as diagnosis/worker_report.h encodes it.
struct WorkerReport {
  std::uint32_t rank = 0;
  std::string report;
  friend bool operator==(const WorkerReport&, const WorkerReport&) = default;
};

// 0 →: which functions do the programs of these ranks run now? Each node answers for its own ranks.
struct StacksWanted {
  std::vector<std::uint32_t> ranks;
  friend bool operator==(const StacksWanted&, const StacksWanted&) = default;
};

// → 0: lines for the user with the stack of a rank's program.
struct StackReport {
  std::vector<std::string> lines;
  friend bool operator==(const StackReport&, const StackReport&) = default;
};

// 0 →, after JobOver: asks for the next `pieces` pieces of the timeline file of the receiver's
// ranks. `job` is the name of the job in that file. If `first_event` is also the first event in the
// receiver's file, then both nodes have the same file, and the receiver sends nothing. 0 pieces:
// node 0 needs no more pieces.
struct TimelineWanted {
  std::uint32_t pieces = 0;
  std::string job;
  std::string first_event;
  friend bool operator==(const TimelineWanted&, const TimelineWanted&) = default;
};

// → 0: the next part of the sender's timeline. This part may end inside a line.
struct TimelinePiece {
  std::uint32_t node = 0;
  std::string text;
  friend bool operator==(const TimelinePiece&, const TimelinePiece&) = default;
};

// → 0: the sender sends no more of its timeline. `why` is empty if it has sent all lines.
struct TimelineEnd {
  std::uint32_t node = 0;
  std::string why;
  friend bool operator==(const TimelineEnd&, const TimelineEnd&) = default;
};

// The following messages are only for elastic jobs. They name workers by their slots, which are the
// ranks of the first workers.

// → 0: a worker of the sender was stopped (SIGSTOP), or continues.
struct WorkerStop {
  std::uint32_t slot = 0;
  bool is_stopped = false;
  friend bool operator==(const WorkerStop&, const WorkerStop&) = default;
};

// → 0: the sender is about to leave, so its workers must end at the next change of the group.
struct NodeLeaves {
  std::uint32_t node = 0;  // the sender
  friend bool operator==(const NodeLeaves&, const NodeLeaves&) = default;
};

// 0 →: start a worker in this slot of the receiver. `number` is for FARANDOLE_ELASTIC_WORKER.
struct WorkerStart {
  std::uint32_t slot = 0;
  std::uint32_t number = 0;
  friend bool operator==(const WorkerStart&, const WorkerStart&) = default;
};

// 0 →: kill the worker with this number, if it still runs.
struct WorkerKill {
  std::uint32_t number = 0;
  bool is_former_member = false;  // if true, the worker's end is not a failure
  friend bool operator==(const WorkerKill&, const WorkerKill&) = default;
};

// 0 →: the group of this epoch is formed now.
struct GroupFormed {
  std::uint32_t epoch = 0;
  std::vector<std::uint32_t> slots;    // by rank
  std::vector<std::uint32_t> numbers;  // the numbers of the workers, by rank
  std::uint32_t state_epoch = 0;       // see Membership::state_epoch()
  friend bool operator==(const GroupFormed&, const GroupFormed&) = default;
};

// 0 →: no more workers are started; the node ends with the last of its workers.
struct NoMoreWorkers {
  friend bool operator==(const NoMoreWorkers&, const NoMoreWorkers&) = default;
};

// → 0: what the sender knows about the job. The sender sends it when node 0 has a new launcher, in
// place of a lost one.
struct NodeState {
  std::uint32_t node = 0;  // the sender
  GroupFormed group{};     // the last group that the sender knows; epoch 0: none
  // The running workers of the sender: their slots, and their numbers in the same order.
  std::vector<std::uint32_t> slots{};
  std::vector<std::uint32_t> numbers{};
  std::vector<std::uint32_t> stopped_slots{};  // whose workers are stopped (SIGSTOP)
  bool is_finishing = false;                   // a worker has succeeded, so no more are started
  bool is_leaving = false;                     // see NodeLeaves
  friend bool operator==(const NodeState&, const NodeState&) = default;
};

// → 0: the sender's launcher runs. See heartbeat.h.
struct HeartbeatMessage {
  friend bool operator==(const HeartbeatMessage&, const HeartbeatMessage&) = default;
};

// 0 →: the member with this rank in this epoch is lost with its node. The process may still run, so
// the other members must leave the group.
struct MemberLost {
  std::uint32_t epoch = 0;
  std::uint32_t rank = 0;
  friend bool operator==(const MemberLost&, const MemberLost&) = default;
};

// The position of a type in this list is the message's first byte.
using NodeMessage =
    std::variant<Hello, NodeRejection, MissingNodes, Start, WorkerExit, FailedNode, NodeEnded,
                 JobOver, WorkersWanted, WorkerReport, StacksWanted, StackReport, TimelineWanted,
                 TimelinePiece, TimelineEnd, WorkerStop, WorkerStart, WorkerKill, GroupFormed,
                 NoMoreWorkers, NodeLeaves, NodeState, HeartbeatMessage, MemberLost>;

Bytes encode(const NodeMessage& message);
// Empty if the bytes are not a message.
std::optional<NodeMessage> decode_node_message(std::span<const std::byte> bytes);

}  // namespace farandole
