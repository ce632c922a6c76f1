// `farandole doctor -H`: examines several hosts and the connections between them.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "farandole/status.h"
#include "host_flags.h"
#include "probe/examination.h"

namespace farandole {

// An object cannot be copied or moved, because the parser holds references into it.
class DoctorHosts {
 public:
  // Declares the flags of the subcommand `doctor`.
  explicit DoctorHosts(CLI::App& doctor);
  DoctorHosts(const DoctorHosts&) = delete;
  DoctorHosts& operator=(const DoctorHosts&) = delete;

  // Returns whether the user has named hosts. Call it after parsing. Errors: kFixCall if the user
  // has given a flag that needs hosts, but no hosts.
  Result<bool> names_hosts() const;
  // Examines the hosts, prints the report, and returns the exit code: 1 if a job over the hosts
  // does not work. Errors: kFixCall if the flags are wrong; kStop for a limit of this host.
  Result<int> run(bool as_json) const;

 private:
  Result<ExaminationPlan> plan() const;

  HostFlags hosts_;
  std::optional<std::string> interfaces_;
  std::optional<std::string> ports_;
};

}  // namespace farandole
