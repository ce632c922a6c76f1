// LauncherSession: receives the secret and the order in a process that the driver has started on a
// host. After that, this process is the launcher of the host.
#pragma once

#include <string_view>

#include "base/descriptor.h"
#include "driver/launcher_order.h"
#include "farandole/status.h"
#include "nodes/node_options.h"

namespace farandole {

class LauncherSession {
 public:
  // Writes the greetings and waits for the secret and the order on the standard input. Blocks.
  // Errors: kStop, without a text, if the driver ends before it has sent both; kFixCall if the
  // input is not an order.
  static Result<LauncherSession> begin(std::string_view version);

  const LauncherOrder& order() const { return order_; }
  // Changes this process's working directory and environment. Errors: kFixCall.
  Status apply_order() const;
  // Returns the options of this launcher's node that are in the order. Errors: kFixCall.
  Result<NodeOptions> node_options() const;
  // A descriptor of memory with the job's secret, for SecretSource; borrowed.
  int secret_descriptor() const { return secret_.get(); }

 private:
  LauncherSession(LauncherOrder order, Descriptor secret)
      : order_(std::move(order)), secret_(std::move(secret)) {}

  LauncherOrder order_;
  Descriptor secret_;  // sealed memory; the read position is at the start
};

}  // namespace farandole
