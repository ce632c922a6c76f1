// NodeOptions: what the command line, or the driver, says about a launcher's part in a job over
// several nodes.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/time_point.h"
#include "farandole/status.h"
#include "network/tcp/endpoint.h"
#include "network/tcp/listen_knobs.h"
#include "network/tcp/socket_address.h"
#include "nodes/node_messages.h"

namespace farandole {

// Where node 0 listens in a job that a driver has started.
struct ListenChoice {
  InterfaceChoice interfaces;
  PortRange ports;
};

// When the launcher of node 0 is lost, the other launchers wait for a replacement for
// kNode0ReturnTimeout. The replacement waits for the other launchers for kReplacementTimeout.
inline constexpr auto kNode0ReturnTimeout = std::chrono::seconds(6);
inline constexpr auto kReplacementTimeout = std::chrono::seconds(5);

// A new launcher of node 0 replaces a lost one. The elastic job has begun, and the launchers of the
// other nodes wait for the new launcher.
struct Replacement {
  std::uint32_t number = 0;              // how many launchers of node 0 were lost
  std::uint32_t epoch = 0;               // the epoch of the last group that the driver knows
  std::vector<std::uint32_t> workers{};  // by node
  std::vector<std::uint32_t> nodes{};  // the nodes that took part until the loss, apart from node 0

  friend bool operator==(const Replacement&, const Replacement&) = default;
};

struct NodeOptions {
  // In a job that a driver has started, the host is the name of node 0's host, for messages to the
  // user, and the port is 0; `listen_choice` and `addresses` say where node 0 listens.
  Endpoint endpoint;
  std::optional<ListenChoice> listen_choice{};  // node 0 of such a job
  // On the other nodes of such a job: the addresses of node 0. A launcher that replaces the one of
  // node 0 listens at the same addresses.
  std::vector<SocketAddress> addresses{};
  std::optional<Replacement> replaces{};  // node 0: set if it replaces a lost launcher
  int nodes = 1;
  int node = 0;
  int workers = 1;        // 0: this is node 0 of an elastic job with a driver
  std::string host{};     // the name of this host for the user; empty: the system's name
  std::string version{};  // of Farandole; all nodes must have the same version
  // Whether MASTER_PORT is reserved on this node, because it is the first one that has workers.
  bool reserves_master_port = false;
  std::uint32_t master_port = 0;
  // The ports of this node's workers for TensorFlow, by local rank; empty without --tf-config.
  std::vector<std::uint32_t> tensorflow_ports{};
  bool uses_jax = false;       // --jax
  bool is_elastic = false;     // --min-workers
  std::uint32_t jax_port = 0;  // the port of JAX's coordinator, on node 0; 0: without --jax
  Duration start_timeout{};
};

// What a launcher says about itself.
Hello hello_of(const NodeOptions& options);

// The values of the flags. A value is empty if the user has not given its flag.
struct NodeFlagValues {
  std::optional<std::string> join;    // --join
  std::optional<std::string> nodes;   // --nodes
  std::optional<std::string> node;    // --node
  std::optional<std::string> secret;  // --secret
};

// Checks the flags of a job over several nodes: the user must give either all of them or none.
// Returns nothing if no flag is given. The caller fills in workers, host, port and time-out. A pure
// function. Errors: kFixCall.
Result<std::optional<NodeOptions>> parse_node_options(const NodeFlagValues& flag_values);

}  // namespace farandole
