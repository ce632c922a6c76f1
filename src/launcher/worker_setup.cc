#include "launcher/worker_setup.h"

#include <utility>

#include "base/cores.h"
#include "base/format.h"
#include "base/host_and_port.h"
#include "base/try.h"

namespace farandole {
namespace {

std::vector<int> descriptors_for_worker(const WorkerDescriptors& descriptors) {
  std::vector<int> inherited{descriptors.rendezvous, descriptors.flight_record};
  if (descriptors.channel >= 0) inherited.push_back(descriptors.channel);
  if (descriptors.launcher >= 0) inherited.push_back(descriptors.launcher);
  if (descriptors.secret >= 0) inherited.push_back(descriptors.secret);
  return inherited;
}

}  // namespace

Result<std::optional<std::string>> WorkerSetup::reserve_ports(bool reserves_master_port) {
  FARANDOLE_TRY_ASSIGN(
      framework_ports_,
      FrameworkPorts::reserve(options_.frameworks, options_.workers, reserves_master_port));
  if (!reserves_master_port) return std::optional<std::string>();
  auto port = ReservedPort::create();
  if (port.ok()) {
    master_port_ = *std::move(port);
    return std::optional<std::string>();
  }
  return std::optional(format_text(
      "no TCP port could be reserved for the job ({}), so MASTER_PORT is empty: programs cannot "
      "use torch.distributed's env://; init_process_group(\"farandole\", "
      "init_method=\"farandole://\") needs no port",
      port.status().message()));
}

std::optional<std::string> WorkerSetup::choose_defaults() {
  inherited_variables_ = inherited_environment();
  std::vector<EnvironmentVariable> given_variables = inherited_variables_;
  given_variables.insert(given_variables.end(), options_.variables.begin(),
                         options_.variables.end());
  division_ = divide_cores(own_cores(), core_quota(), options_.workers, options_.bind_to);
  const auto memory_variable = kept_memory_variable(options_.kept_bytes, given_variables);
  if (memory_variable) default_variables_.push_back(*memory_variable);
  for (const auto& [name, value] : given_variables)
    if (name == kThreadsVariable) return std::nullopt;
  return format_text(
      "{}={} in every worker ({}){} to choose otherwise", kThreadsVariable, threads_text(division_),
      describe(division_),
      memory_variable
          ? format_text(", and {} keeps freed memory for new tensors; set them yourself",
                        memory_variable->first)
          : "; set it yourself");
}

RendezvousAddresses WorkerSetup::rendezvous_addresses(const JobNodes* nodes) const {
  if (nodes != nullptr) return nodes->rendezvous_addresses();
  return {.job_store = "", .master_address = "127.0.0.1", .master_port = master_port()};
}

FrameworkAddresses WorkerSetup::framework_addresses(const NodeLayout& layout,
                                                    const JobNodes* nodes) const {
  if (nodes != nullptr) return nodes->framework_addresses();
  const std::string host = rendezvous_addresses(nodes).master_address;
  const std::vector<std::uint32_t> ports = framework_ports_.tensorflow_ports();
  const std::uint32_t jax_port = framework_ports_.jax_port();
  std::vector<std::string> addresses;
  if (!ports.empty()) addresses.push_back(host);
  return {.tensorflow = addresses_by_rank(layout, addresses, ports),
          .jax = jax_port == 0 ? "" : host_and_port(host, jax_port)};
}

void WorkerSetup::Worker::use_caller_descriptors(const CallerDescriptors& caller) {
  const auto index = static_cast<std::size_t>(local_rank);
  if (!caller.channels.empty()) descriptors.channel = caller.channels.at(index);
  if (caller.streams.empty()) return;
  standard_output = caller.streams.at(2 * index);
  standard_error = caller.streams.at(2 * index + 1);
}

Result<StartedProcess> WorkerSetup::start(const Worker& worker, const NodeLayout& layout,
                                          const JobNodes* nodes,
                                          const OriginalProcessState& state) const {
  FARANDOLE_TRY_ASSIGN(const auto environment, this->environment(worker, layout, nodes));
  return start_process({.command = options_.command,
                        .environment = environment,
                        .inherited = descriptors_for_worker(worker.descriptors),
                        .standard_output = worker.standard_output,
                        .standard_error = worker.standard_error,
                        .hardware_threads = cores_of(worker.local_rank).hardware_threads,
                        .original_state = state});
}

Result<std::vector<std::string>> WorkerSetup::environment(const Worker& worker,
                                                          const NodeLayout& layout,
                                                          const JobNodes* nodes) const {
  const int local_rank = worker.local_rank;
  FARANDOLE_TRY_ASSIGN(const auto variables_of_frameworks,
                       framework_variables(layout, local_rank, framework_addresses(layout, nodes)));
  const RendezvousAddresses addresses = rendezvous_addresses(nodes);
  return merge_environment({default_variables(cores_of(local_rank).threads),
                            default_variables_,
                            inherited_variables_,
                            options_.variables,
                            rank_variables(layout, local_rank, worker.descriptors, addresses),
                            torchrun_variables(layout, local_rank, addresses),
                            variables_of_frameworks,
                            {{"FARANDOLE_ELASTIC_WORKER", std::to_string(worker.elastic_number)}}});
}

}  // namespace farandole
