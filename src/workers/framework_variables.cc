#include "workers/framework_variables.h"

#include <algorithm>

#include "base/format.h"
#include "base/host_and_port.h"
#include "base/try.h"
#include "environment/foreign_launcher.h"

namespace farandole {
namespace {

constexpr const char* kTfConfig = "TF_CONFIG";
// The longest "NAME=value" that execve takes: MAX_ARG_STRLEN in Linux, with the final zero.
constexpr std::size_t kVariableBytesMax = std::size_t{32} * 4096 - 1;

// Hosts are IP addresses or names, so no character needs an escape.
Result<EnvironmentVariable> tf_config(const std::vector<std::string>& workers, int rank) {
  EnvironmentVariable variable(
      kTfConfig,
      format_text(
          R"({{"cluster": {{"worker": ["{}"]}}, "task": {{"type": "worker", "index": {}}}}})",
          join_text(workers, "\", \""), rank));
  const std::size_t bytes = variable.first.size() + 1 + variable.second.size();
  if (bytes <= kVariableBytesMax) return variable;
  return Status::stop(format_text(
      "--tf-config: TF_CONFIG for {} workers has {} bytes, but an environment variable can have at "
      "most {}; start fewer workers",
      workers.size(), bytes, kVariableBytesMax));
}

std::vector<EnvironmentVariable> jax_variables(const NodeLayout& layout, int local_rank,
                                               const std::string& coordinator) {
  const std::string rank = std::to_string(layout.rank_of(local_rank));
  const std::string size = std::to_string(layout.size());
  return {{"JAX_COORDINATOR_ADDRESS", coordinator},
          {"JAX_NUM_PROCESSES", size},
          {"JAX_PROCESS_ID", rank},
          {"OMPI_MCA_orte_hnp_uri", kOwnTorchrunJob},
          {"OMPI_COMM_WORLD_SIZE", size},
          {"OMPI_COMM_WORLD_RANK", rank},
          {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(local_rank)}};
}

}  // namespace

std::vector<std::string> addresses_by_rank(const NodeLayout& layout,
                                           const std::vector<std::string>& addresses,
                                           const std::vector<std::uint32_t>& ports) {
  std::vector<std::string> server_addresses;
  for (std::size_t node = 0; node < addresses.size(); ++node)
    for (int worker = 0; worker < layout.workers.at(node); ++worker)
      server_addresses.push_back(host_and_port(addresses[node], ports.at(server_addresses.size())));
  return server_addresses;
}

Result<std::vector<EnvironmentVariable>> framework_variables(const NodeLayout& layout,
                                                             int local_rank,
                                                             const FrameworkAddresses& addresses) {
  std::vector<EnvironmentVariable> variables;
  if (!addresses.jax.empty()) variables = jax_variables(layout, local_rank, addresses.jax);
  if (!addresses.tensorflow.empty()) {
    FARANDOLE_TRY_ASSIGN(variables.emplace_back(),
                         tf_config(addresses.tensorflow, layout.rank_of(local_rank)));
  }
  return variables;
}

std::string_view flag_that_sets(std::string_view variable, const FrameworkFlags& flags) {
  if (flags.tf_config && variable == kTfConfig) return "--tf-config";
  const auto known_jax_variables = jax_variables({}, 0, "");
  const bool is_of_jax = std::ranges::any_of(
      known_jax_variables, [&](const auto& known) { return known.first == variable; });
  return flags.jax && is_of_jax ? "--jax" : "";
}

}  // namespace farandole
