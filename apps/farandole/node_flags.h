// The flags of `farandole run` for jobs over several hosts. --join, --nodes, --node and --secret
// are for users who start each node themselves. With -H or --hostfile, a driver starts all nodes.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "farandole/status.h"
#include "host_flags.h"
#include "nodes/node_options.h"
#include "remote/host_list.h"
#include "remote/ssh_command.h"

namespace farandole {

// An object cannot be copied or moved, because the parser holds references into it.
class NodeFlags {
 public:
  explicit NodeFlags(CLI::App& command);
  NodeFlags(const NodeFlags&) = delete;
  NodeFlags& operator=(const NodeFlags&) = delete;

  // Call it after parsing. The result is empty if the job is on this host only. If a scheduler has
  // started this process, the scheduler's variables supply the values that the user has not given.
  // May print a notice. Errors: kFixCall.
  Result<std::optional<NodeOptions>> node_options() const;
  // Whether the variables of a scheduler say that it has started this process.
  static bool scheduler_has_started_us();
  std::string secret_path() const { return flag_values_.secret.value_or(""); }

  // Whether a driver starts the nodes: -H or --hostfile was given.
  bool names_hosts() const { return hosts_.names_hosts(); }
  // The hosts of the job, each with its number of workers. `workers` is the number of workers of
  // the whole job; if it is empty, each slot gets a worker. Errors: kFixCall.
  Result<std::vector<HostEntry>> hosts(std::optional<int> workers) const;
  // Errors: kFixCall.
  Result<SshOptions> ssh_options() const { return hosts_.ssh_options(); }
  // Whether only the driver uses a flag. The driver does not pass such a flag on to the hosts.
  static bool is_for_driver(std::string_view flag) { return HostFlags::is_host_flag(flag); }

 private:
  HostFlags hosts_;
  NodeFlagValues flag_values_;
};

}  // namespace farandole
