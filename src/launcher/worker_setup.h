// WorkerSetup: starts the workers of this host with their environment variables, their cores, and
// the ports that the launcher reserves for them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/job_nodes.h"
#include "launcher/job_options.h"
#include "nodes/node_layout.h"
#include "workers/core_binding.h"
#include "workers/framework_ports.h"
#include "workers/framework_variables.h"
#include "workers/reserved_port.h"
#include "workers/worker_environment.h"
#include "workers/worker_process.h"

namespace farandole {

class WorkerSetup {
 public:
  // `options` must outlive this object.
  explicit WorkerSetup(const JobOptions& options) : options_(options) {}

  // Reserves the ports of the frameworks and, if `reserves_master_port`, also MASTER_PORT. Returns
  // a notice for the user if there is no port for MASTER_PORT: most programs do not use this port,
  // so the job starts without it. Errors: kStop, if the frameworks need ports and there are none.
  Result<std::optional<std::string>> reserve_ports(bool reserves_master_port);
  // MASTER_PORT of this job; 0 if none is reserved here.
  int master_port() const { return master_port_ ? master_port_->number() : 0; }
  const FrameworkPorts& framework_ports() const { return framework_ports_; }

  // Chooses the cores of the workers and the variables that the user has not set. Returns a notice
  // for the user, unless the user has set the number of threads. Call it once.
  std::optional<std::string> choose_defaults();

  struct Worker {
    int local_rank = 0;
    int elastic_number = -1;  // the worker's number in an elastic job; −1: the job is not elastic
    WorkerDescriptors descriptors;
    int standard_output = -1;
    int standard_error = -1;
    // Gives this worker those descriptors in `caller` that are for its local rank.
    void use_caller_descriptors(const CallerDescriptors& caller);
  };
  // Starts a worker. `nodes` is null if the job is on this host only. Errors: as start_process();
  // kStop, if the variables of a framework cannot be made.
  Result<StartedProcess> start(const Worker& worker, const NodeLayout& layout,
                               const JobNodes* nodes, const OriginalProcessState& state) const;

 private:
  // The environment of a worker, in the form that execve needs.
  Result<std::vector<std::string>> environment(const Worker& worker, const NodeLayout& layout,
                                               const JobNodes* nodes) const;
  const WorkerCores& cores_of(int local_rank) const {
    return division_.workers.at(static_cast<std::size_t>(local_rank));
  }
  RendezvousAddresses rendezvous_addresses(const JobNodes* nodes) const;
  FrameworkAddresses framework_addresses(const NodeLayout& layout, const JobNodes* nodes) const;

  const JobOptions& options_;
  std::optional<ReservedPort> master_port_;  // MASTER_PORT, reserved until the job ends
  FrameworkPorts framework_ports_;
  std::vector<EnvironmentVariable> inherited_variables_;
  std::vector<EnvironmentVariable> default_variables_;  // a value of the user overrides a default
  CoreDivision division_;                               // the cores and the threads of the workers
};

}  // namespace farandole
