// FrameworkPorts: the ports of this host at which servers of TensorFlow and JAX will listen in the
// workers of a job.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "farandole/status.h"
#include "workers/reserved_port.h"

namespace farandole {

// The workers get variables of these frameworks, by which they find each other.
struct FrameworkFlags {
  bool tf_config = false;  // --tf-config: TensorFlow
  bool jax = false;        // --jax

  bool any() const { return tf_config || jax; }
};

class FrameworkPorts {
 public:
  // With --tf-config, reserves a port for each worker of this node. With --jax, reserves one port
  // on node 0. Errors: kStop.
  static Result<FrameworkPorts> reserve(const FrameworkFlags& flags, int workers, bool is_node_0);

  std::vector<std::uint32_t> tensorflow_ports() const;  // by local rank; empty without --tf-config
  std::uint32_t jax_port() const;                       // the port of JAX's coordinator; 0: none

 private:
  std::vector<ReservedPort> tensorflow_;
  std::optional<ReservedPort> jax_;
};

}  // namespace farandole
