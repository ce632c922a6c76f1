// Endpoint variables: environment variables in which schedulers and launchers say where the first
// process of a job can be reached. The functions are pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/knobs.h"
#include "farandole/status.h"

namespace farandole {

// The names of the variables. A name is empty if the launcher has no such variable.
struct EndpointVariables {
  const char* host_list = "";  // all hosts, as Slurm writes them; we use the first host
  const char* host = "";       // only the first host
  const char* address = "";    // the first host with a port
  const char* port = "";       // a port of the first host
  // Numbers that differ between jobs, and between the parts or attempts of a job. If there is no
  // port, a port from 20000 to 29999 is computed from these numbers, so that jobs take different
  // ports.
  const char* job = "";
  const char* part = "";
};

inline constexpr EndpointVariables kEndpointOfSlurm{.host_list = "SLURM_STEP_NODELIST",
                                                    .port = "SLURM_STEP_RESV_PORTS",
                                                    .job = "SLURM_JOB_ID",
                                                    .part = "SLURM_STEP_ID"};

// Azure ML and Azure Batch set this variable when they start mpirun for the user.
inline constexpr EndpointVariables kEndpointOfAzure{.address = "AZ_BATCH_MASTER_NODE"};

// Returns "host:port". Empty if the variables do not contain a host and a port. `environment`
// answers like getenv.
std::optional<std::string> endpoint_of(const Environment& environment,
                                       const EndpointVariables& variables);

// The port for a job that shares its hosts with no other job.
inline constexpr std::uint16_t kPortOnExclusiveHosts = 20000;

// Returns the first host of a Slurm host list: "tux003" for "tux[003-005,7],hen".
std::string first_of_host_list(std::string_view list);

// Reads "2", and the first number of "2(x3)", "2,1" and "2-4", as Slurm writes lists. Empty if the
// text is something else, or the number is above INT32_MAX.
std::optional<std::uint64_t> leading_number(std::string_view text);

// Returns the leading number of a variable, or `default_value` if the variable is not set. Errors:
// kFixCall with the name of the `launcher` that should have set the variable.
Result<int> leading_number_in(const Environment& environment, const char* variable,
                              std::string_view launcher, int default_value);

}  // namespace farandole
