#include "run_options.h"

#include <chrono>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "base/knobs.h"
#include "base/try.h"

namespace farandole {
namespace {

constexpr int kWorkersMax = 65536;
constexpr int kGraceSecondsMax = 24 * 3600;

constexpr const char* kFooter = R"(
Examples:
  farandole run -n 2 python train.py --epochs 3
  farandole run -n 4 --start-timeout 300 -- ./train

Everything after the program's name belongs to the program.

Every line of a worker's output gets its rank in front. If the output goes to a terminal, workers
see a terminal too, so progress bars and colors work. Standard input of all workers is empty
(/dev/null). Workers get OMP_NUM_THREADS = cores / workers and PYTHONUNBUFFERED=1 unless you have
set them.

When a worker fails, the others have 2 s to end with an error of their own, then get SIGTERM and
5 s later SIGKILL. The exit code is that of the first worker that failed (128 + N for signal N).
SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to the workers once; the exit code is 128 + N
then. A second one kills the job. Processes that workers have left when all ended well have 2 s to
end, then get SIGTERM and 2 s later SIGKILL. When the command returns, none of its processes is left.
)";

// Says that a program follows, which the parser does not know of.
class RunFormatter final : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: farandole run -n N [options] program [arguments...]\n";
  }
};

}  // namespace

RunOptions::RunOptions(CLI::App& app)
    : command_(app.add_subcommand("run", "Start a program N times on this host, as one job")) {
  command_->footer(kFooter);
  command_->prefix_command();
  command_->formatter(std::make_shared<RunFormatter>());
  command_->add_option("-n,--workers", workers_, "How many workers to start")->type_name("N");
  command_
      ->add_option("--grace-time", grace_seconds_,
                   "Seconds that workers have to end after a signal was passed on to them")
      ->type_name("S")
      ->capture_default_str();
  for (const KnobRow& row : knob_rows()) {
    if (row.flag.empty()) continue;
    const std::string variable(row.name);
    const std::string help = std::string(row.help) + " Sets " + variable + "; default " +
                             std::string(row.default_value) + ".";
    if (row.type == KnobType::kSwitch)
      command_->add_flag_callback(
          std::string(row.flag), [this, variable] { knobs_[variable] = "1"; }, help);
    else
      command_
          ->add_option_function<std::string>(
              std::string(row.flag),
              [this, variable](const std::string& value) { knobs_[variable] = value; }, help)
          ->type_name(row.type == KnobType::kInteger ? "N" : "WORD");
  }
}

Result<std::vector<std::string>> RunOptions::program(
    const std::vector<std::string>& after_dashes) const {
  std::vector<std::string> program = command_->remaining();
  if (!program.empty() && program.front().starts_with('-'))
    return Status::fix_call("unknown option " + program.front());
  // Later dashes are the program's own.
  if (!program.empty() && !after_dashes.empty()) program.push_back("--");
  program.insert(program.end(), after_dashes.begin(), after_dashes.end());
  if (program.empty())
    return Status::fix_call("which program? For example `farandole run -n 2 python train.py`");
  return program;
}

Result<JobOptions> RunOptions::job(const std::vector<std::string>& after_dashes) const {
  JobOptions job;
  FARANDOLE_TRY_ASSIGN(job.command, program(after_dashes));
  if (command_->count("-n") == 0)
    return Status::fix_call("how many workers? Say `-n N`, for example `farandole run -n 2 …`");
  if (workers_ < 1 || workers_ > kWorkersMax)
    return Status::fix_call("-n " + std::to_string(workers_) + " is not a number of workers; it " +
                            "must be from 1 to " + std::to_string(kWorkersMax));
  if (grace_seconds_ < 0 || grace_seconds_ > kGraceSecondsMax)
    return Status::fix_call("--grace-time " + std::to_string(grace_seconds_) +
                            " must be from 0 to " + std::to_string(kGraceSecondsMax));
  // The workers would all refuse a wrong value; once, here, is friendlier.
  const auto read = Knobs::read([this](const char* name) -> const char* {
    const auto flag = knobs_.find(name);
    return flag != knobs_.end() ? flag->second.c_str() : std::getenv(name);
  });
  if (!read.ok()) return read.status();
  job.workers = workers_;
  job.grace = std::chrono::seconds(grace_seconds_);
  job.settings = {knobs_.begin(), knobs_.end()};
  return job;
}

}  // namespace farandole
