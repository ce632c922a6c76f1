#include "workers/framework_ports.h"

#include <utility>

#include "base/format.h"
#include "base/try.h"

namespace farandole {
namespace {

Result<ReservedPort> reserve_port_for(const char* flag) {
  auto port = ReservedPort::create();
  if (port.ok()) return port;
  return Status::stop(
      format_text("{}: no TCP port could be reserved ({})", flag, port.status().message()));
}

}  // namespace

Result<FrameworkPorts> FrameworkPorts::reserve(const FrameworkFlags& flags, int workers,
                                               bool is_node_0) {
  FrameworkPorts ports;
  for (int worker = 0; flags.tf_config && worker < workers; ++worker) {
    FARANDOLE_TRY_ASSIGN(auto port, reserve_port_for("--tf-config"));
    ports.tensorflow_.push_back(std::move(port));
  }
  if (flags.jax && is_node_0) {
    FARANDOLE_TRY_ASSIGN(ports.jax_, reserve_port_for("--jax"));
  }
  return ports;
}

std::vector<std::uint32_t> FrameworkPorts::tensorflow_ports() const {
  std::vector<std::uint32_t> numbers;
  for (const ReservedPort& port : tensorflow_)
    numbers.push_back(static_cast<std::uint32_t>(port.number()));
  return numbers;
}

std::uint32_t FrameworkPorts::jax_port() const {
  return jax_ ? static_cast<std::uint32_t>(jax_->number()) : 0;
}

}  // namespace farandole
