// The command line of `farandole run`.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "farandole/status.h"
#include "launcher/job_options.h"

namespace farandole {

// Declares the subcommand and, after parsing, tells what was asked for. Neither copies nor moves:
// the parser holds references into it.
class RunOptions {
 public:
  explicit RunOptions(CLI::App& app);
  RunOptions(const RunOptions&) = delete;
  RunOptions& operator=(const RunOptions&) = delete;

  bool chosen() const { return command_->parsed(); }
  // `after_dashes`: what followed a `--`, which the parser has not seen. Errors: kFixCall, for the
  // user.
  Result<JobOptions> job(const std::vector<std::string>& after_dashes) const;

 private:
  Result<std::vector<std::string>> program(const std::vector<std::string>& after_dashes) const;

  CLI::App* command_;  // owned by the parser
  int workers_ = 0;
  int grace_seconds_ = 30;
  std::map<std::string, std::string> knobs_;  // by environment variable
};

}  // namespace farandole
