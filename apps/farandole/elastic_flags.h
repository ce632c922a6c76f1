// The flags of `farandole run` for elastic jobs.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "driver/driver.h"
#include "farandole/status.h"
#include "membership/membership.h"
#include "workers/framework_ports.h"

namespace farandole {

// An object cannot be copied or moved, because the parser holds references into it.
class ElasticFlags {
 public:
  explicit ElasticFlags(CLI::App& command);
  ElasticFlags(const ElasticFlags&) = delete;
  ElasticFlags& operator=(const ElasticFlags&) = delete;

  // Whether a program lists the hosts: --host-discovery-script was given.
  bool discovers_hosts() const { return discovery_.has_value(); }
  // Rejects flags that need --host-discovery-script. Call it if this flag is not given and this
  // launcher has no driver. Errors: kFixCall.
  Status check_without_discovery() const;
  // Returns what the driver needs to find the hosts. `workers` is the value of -n, or empty if -n
  // is not given. Errors: kFixCall.
  Result<DiscoveryPlan> discovery(std::optional<int> workers,
                                  const Membership::Options& elastic) const;
  // Whether only the driver uses a flag. The driver does not pass such a flag on to the hosts.
  static bool is_for_driver(std::string_view flag) {
    return flag == "--host-discovery-script" || flag == "--slots-per-host";
  }
  // Call it after parsing. `workers` is the number of workers at the start of the job, or, if this
  // number is not known yet, the largest number that the job may have. The result is empty if the
  // job is not elastic. Errors: kFixCall.
  Result<std::optional<Membership::Options>> options(int workers,
                                                     const FrameworkFlags& frameworks) const;

 private:
  Status check_unused() const;
  Status read_cooldown(Membership::Options& options) const;

  std::optional<std::string> workers_min_;
  std::optional<std::string> workers_max_;
  std::optional<std::string> discovery_;
  std::optional<std::string> slots_per_host_;
  std::optional<std::string> reset_limit_;
  std::optional<std::string> cooldown_;
  std::optional<std::string> timeout_;
};

}  // namespace farandole
