// The command line of `farandole run`.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "caller_flags.h"
#include "driver/driver.h"
#include "elastic_flags.h"
#include "farandole/knobs.h"
#include "farandole/status.h"
#include "launcher/job_options.h"
#include "node_flags.h"

namespace farandole {

// Declares the subcommand. After parsing, job() returns the job that the user asked for. A
// RunOptions cannot be copied or moved, because the parser holds references into it.
class RunOptions {
 public:
  explicit RunOptions(CLI::App& app);
  RunOptions(const RunOptions&) = delete;
  RunOptions& operator=(const RunOptions&) = delete;

  // Rejects flags of `horovodrun`, because the parser could read a part of such a flag as one of
  // our flags. Returns the words for the parser. `--name=` becomes the two words `--name` and "",
  // because the parser would otherwise read the next word as the value. The first word is `run`.
  // Errors: kFixCall, with a text that says what users can do instead.
  Result<std::vector<std::string>> checked_words(const std::vector<std::string>& words) const;

  bool is_chosen() const { return command_->parsed(); }
  // Values that replace those of the command line.
  struct Overrides {
    // This launcher's node, if a driver has started this launcher.
    std::optional<NodeOptions> nodes{};
    std::optional<int> workers{};  // replaces the value of -n
  };
  // Returns the job that the user has asked for. `after_dashes` are the words after a `--`, which
  // the parser has not seen. Errors: kFixCall, with a text for the user.
  Result<JobOptions> job(const std::vector<std::string>& after_dashes,
                         const Overrides& overrides) const;

  // Whether the user has named the hosts of the job. If so, a driver starts the job, and the caller
  // must call plan() instead of job().
  bool names_hosts() const { return nodes_.names_hosts() || elastic_.discovers_hosts(); }
  // Whether the user has asked only for the list of the job's hosts, which plan() returns.
  bool only_lists_hosts() const { return caller_.only_lists_hosts(); }
  // Returns the job that a driver starts. Errors: kFixCall, with a text for the user.
  Result<DriverPlan> plan(const std::vector<std::string>& after_dashes) const;

 private:
  using Variables = std::map<std::string, std::string>;

  void add_knobs();
  Result<std::vector<std::string>> program(const std::vector<std::string>& after_dashes) const;
  // `size` is the number of ranks of the job, if it is known.
  Result<OutputOptions> output(int size) const;
  Result<Variables> settings() const;
  Result<std::chrono::seconds> grace() const;
  static Result<Knobs> knobs(const Variables& settings);
  Result<std::vector<std::string>> flags_for_launchers() const;
  Status check_discovery() const;

  CLI::App* command_;  // owned by the parser
  NodeFlags nodes_;
  CallerFlags caller_;
  ElasticFlags elastic_;
  std::string workers_;
  std::string bind_to_ = "none";
  FrameworkFlags frameworks_;
  std::string grace_seconds_ = "30";
  std::vector<std::string> variables_;  // the values of -x
  std::string output_folder_;
  std::string prefix_ = "[{rank}] ";
  std::string shown_ranks_;
  Variables knob_flags_;  // the values of the knobs that are given as flags, by flag
};

}  // namespace farandole
