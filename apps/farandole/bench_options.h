// The command line of `farandole bench`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "bench_plan.h"
#include "farandole/status.h"
#include "launcher/job_options.h"

namespace farandole {

// An object cannot be copied or moved, because the parser holds references into it.
class BenchOptions {
 public:
  explicit BenchOptions(CLI::App& app);
  BenchOptions(const BenchOptions&) = delete;
  BenchOptions& operator=(const BenchOptions&) = delete;

  bool is_chosen() const { return command_->parsed(); }
  // Whether this process is a worker of the job that job() describes.
  bool is_worker() const { return is_worker_; }
  // Errors: kFixCall, with a text for the user.
  Result<BenchPlan> plan() const;
  // Returns the options of a job. The workers of this job run this program with the same arguments
  // and with --worker. Errors: kFixCall, kStop.
  Result<JobOptions> job(const BenchPlan& plan, const std::vector<std::string>& words) const;

 private:
  CLI::App* command_;  // owned by the parser
  std::string operation_;
  std::string workers_ = "2";
  std::string sizes_ = "8,1K,64K,1M,16M,64M";
  std::string dtype_ = "float32";
  std::string memory_ = "heap";
  std::string json_path_;
  bool consume_ = false;
  bool is_worker_ = false;
};

}  // namespace farandole
