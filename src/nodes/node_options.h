// NodeOptions: what the command line says about a launcher's part in a job over several nodes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/time_point.h"
#include "farandole/status.h"
#include "nodes/endpoint.h"

namespace farandole {

struct NodeOptions {
  Endpoint endpoint;
  int nodes = 1;
  int node = 0;
  int workers = 1;
  std::string host;               // its name, for texts
  std::uint32_t master_port = 0;  // of node 0
  Duration start_timeout{};
};

// The values of the flags; empty if a flag was not given.
struct NodeWords {
  std::optional<std::string> join;    // --join
  std::optional<std::string> nodes;   // --nodes
  std::optional<std::string> node;    // --node
  std::optional<std::string> secret;  // --secret
};

// Checks the flags of a job over several nodes: all or none of them must be given. Returns nothing
// if none is. The caller fills in workers, host, port and time-out. A pure function. Errors:
// kFixCall.
Result<std::optional<NodeOptions>> parse_node_options(const NodeWords& words);

}  // namespace farandole
