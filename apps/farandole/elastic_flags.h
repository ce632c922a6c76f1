// The flags of `farandole run` for elastic jobs.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "farandole/status.h"
#include "launcher/job_options.h"
#include "membership/membership.h"

namespace farandole {

// An object cannot be copied or moved, because the parser holds references into it.
class ElasticFlags {
 public:
  explicit ElasticFlags(CLI::App& command);
  ElasticFlags(const ElasticFlags&) = delete;
  ElasticFlags& operator=(const ElasticFlags&) = delete;

  // Call it after parsing, with the job as it is without these flags. Empty if the job is not
  // elastic. Errors: kFixCall.
  Result<std::optional<Membership::Options>> options(const JobOptions& job) const;
  // Errors: kFixCall if the job has hosts and is elastic.
  Status check_hosts() const;

 private:
  Status check_unused() const;
  Status read_cooldown(Membership::Options& options) const;

  std::optional<std::string> workers_min_;
  std::optional<std::string> reset_limit_;
  std::optional<std::string> cooldown_;
  std::optional<std::string> timeout_;
};

}  // namespace farandole
