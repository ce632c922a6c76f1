// The environment variables by which programs of TensorFlow and JAX find the workers of their job.
// All functions are pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "farandole/status.h"
#include "nodes/node_layout.h"
#include "workers/framework_ports.h"
#include "workers/worker_environment.h"

namespace farandole {

// Where the frameworks' servers in the workers listen, as "host:port".
struct FrameworkAddresses {
  std::vector<std::string> tensorflow{};  // by rank; empty without --tf-config
  std::string jax{};                      // JAX's coordinator, in rank 0; empty without --jax
};

// Returns the addresses of TensorFlow's servers by rank. `addresses` are those of the nodes, and
// `ports` has the ports of all ranks.
std::vector<std::string> addresses_by_rank(const NodeLayout& layout,
                                           const std::vector<std::string>& addresses,
                                           const std::vector<std::uint32_t>& ports);

// The variables of a worker. They override inherited variables.
//
// TensorFlow reads TF_CONFIG. jax.distributed.initialize() reads only the coordinator's address
// from a variable of its own. It takes the other values from the variables of a launcher that it
// recognizes, and looks for Open MPI first. So we set the variables of Open MPI. The value of
// OMPI_MCA_orte_hnp_uri does not matter, because JAX already has the coordinator's address from its
// own variable. Many scripts read JAX_NUM_PROCESSES and JAX_PROCESS_ID. Errors: kStop if TF_CONFIG
// is longer than Linux allows.
Result<std::vector<EnvironmentVariable>> framework_variables(const NodeLayout& layout,
                                                             int local_rank,
                                                             const FrameworkAddresses& addresses);

// Returns the flag that sets this variable in every worker; empty if none of the given flags does.
std::string_view flag_that_sets(std::string_view variable, const FrameworkFlags& flags);

}  // namespace farandole
