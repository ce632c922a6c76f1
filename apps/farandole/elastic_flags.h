// The flags of `farandole run` for elastic jobs.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

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

  // Call it after parsing. `workers` is how many workers the job has at most. Empty if the job is
  // not elastic. Errors: kFixCall.
  Result<std::optional<Membership::Options>> options(int workers,
                                                     const FrameworkFlags& frameworks) const;

 private:
  Status check_unused() const;
  Status read_cooldown(Membership::Options& options) const;

  std::optional<std::string> workers_min_;
  std::optional<std::string> reset_limit_;
  std::optional<std::string> cooldown_;
  std::optional<std::string> timeout_;
};

}  // namespace farandole
