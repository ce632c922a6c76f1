#include "nodes/node_options.h"

#include <array>
#include <utility>

#include "base/format.h"
#include "base/try.h"
#include "base/whole_number.h"
#include "nodes/node_layout.h"

namespace farandole {

Hello hello_of(const NodeOptions& options) {
  return {.node = static_cast<std::uint32_t>(options.node),
          .nodes = static_cast<std::uint32_t>(options.nodes),
          .workers = static_cast<std::uint32_t>(options.workers),
          .host = options.host,
          .version = options.version,
          .tensorflow_ports = options.tensorflow_ports,
          .uses_jax = options.uses_jax,
          .is_elastic = options.is_elastic,
          .master_port = options.master_port};
}

Result<std::optional<NodeOptions>> parse_node_options(const NodeFlagValues& flag_values) {
  const std::array flags{
      std::pair("--join", &flag_values.join), std::pair("--nodes", &flag_values.nodes),
      std::pair("--node", &flag_values.node), std::pair("--secret", &flag_values.secret)};
  std::string given_flags;
  std::string missing_flags;
  for (const auto& [flag, value] : flags) {
    std::string& list = *value ? given_flags : missing_flags;
    list += (list.empty() ? "" : ", ") + std::string(flag);
  }
  if (given_flags.empty()) return std::optional<NodeOptions>();
  if (!missing_flags.empty())
    return Status::fix_call(format_text(
        "{} {} given without {}; a job over several hosts needs --join HOST:PORT --nodes N --node "
        "K --secret FILE, on each host with its own K",
        given_flags, given_flags.find(',') == std::string::npos ? "is" : "are", missing_flags));
  NodeOptions options;
  auto endpoint = Endpoint::parse(*flag_values.join);
  if (!endpoint.ok()) return Status::fix_call("--join " + endpoint.status().message());
  options.endpoint = *std::move(endpoint);
  FARANDOLE_TRY_ASSIGN(options.nodes,
                       parse_whole_number("--nodes", *flag_values.nodes, 1, kNodesMax));
  FARANDOLE_TRY_ASSIGN(options.node,
                       parse_whole_number("--node", *flag_values.node, 0, kNodesMax - 1));
  if (options.node >= options.nodes)
    return Status::fix_call(
        format_text("--node is {}, but the job has {} {}, numbered from 0 to {}", options.node,
                    options.nodes, options.nodes == 1 ? "node" : "nodes", options.nodes - 1));
  if (flag_values.secret->empty())
    return Status::fix_call(
        "--secret \"\": which file? `farandole secret FILE` makes one; copy it to all hosts");
  return std::optional(std::move(options));
}

}  // namespace farandole
