#include "elastic_flags.h"

#include <limits>

#include "base/format.h"
#include "base/try.h"
#include "base/whole_number.h"
#include "nodes/node_layout.h"

namespace farandole {
namespace {

constexpr int kSecondsMax = 24 * 3600;

}  // namespace

ElasticFlags::ElasticFlags(CLI::App& command) {
  const Membership::Options defaults;
  const auto add = [&](const char* flag, const char* type, std::optional<std::string>& value,
                       const std::string& help) {
    command.add_option(flag, value, help)
        ->type_name(type)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  };
  add("--min-workers", "N", workers_min_,
      "Makes the job elastic: if a worker fails, the others go on as long as at least N are left, "
      "and a new worker takes its place (see below)");
  add("--max-workers", "N", workers_max_,
      "Elastic jobs: the largest number of workers, if hosts come and go");
  add("--host-discovery-script", "COMMAND", discovery_,
      "Elastic jobs: a command that writes the hosts that the job may use, one per line, such as "
      "`hen:4`. It runs every second; hosts that it adds join the job, and hosts that it "
      "leaves out leave it. The job starts when there are -n slots (default: --min-workers)");
  add("--slots-per-host", "N", slots_per_host_,
      "Elastic jobs: the slots of hosts that are listed without a number; default 1");
  add("--reset-limit", "N", reset_limit_,
      "Elastic jobs: how often the group of the workers may be formed again before the job ends; "
      "default: any number of times");
  add("--cooldown-range", "LOW,HIGH", cooldown_,
      format_text("Elastic jobs: seconds until a failed worker is replaced. The time begins with "
                  "LOW and doubles with each failure up to HIGH; default {},{}",
                  defaults.cooldown_min.count(), defaults.cooldown_max.count()));
  add("--elastic-timeout", "S", timeout_,
      format_text("Elastic jobs: the time in seconds for which the workers wait until there are at "
                  "least --min-workers; default {}",
                  defaults.shortage_max.count()));
}

Status ElasticFlags::check_unused() const {
  if (workers_min_) return {};
  for (const auto& [flag, value] :
       {std::pair("--max-workers", workers_max_), std::pair("--host-discovery-script", discovery_),
        std::pair("--slots-per-host", slots_per_host_), std::pair("--reset-limit", reset_limit_),
        std::pair("--cooldown-range", cooldown_), std::pair("--elastic-timeout", timeout_)})
    if (value)
      return Status::fix_call(format_text(
          "{} is for elastic jobs: also say how many workers are enough, with --min-workers N",
          flag));
  return {};
}

Status ElasticFlags::read_cooldown(Membership::Options& options) const {
  const auto comma = cooldown_->find(',');
  if (comma == std::string::npos)
    return Status::fix_call(format_text(
        "--cooldown-range is \"{}\"; it must be two numbers of seconds, such as 1,60", *cooldown_));
  FARANDOLE_TRY_ASSIGN(
      const int low,
      parse_whole_number("--cooldown-range", cooldown_->substr(0, comma), 0, kSecondsMax));
  FARANDOLE_TRY_ASSIGN(
      const int high,
      parse_whole_number("--cooldown-range", cooldown_->substr(comma + 1), 0, kSecondsMax));
  if (low > high)
    return Status::fix_call(format_text(
        "--cooldown-range is \"{}\"; the first number must not be the higher one", *cooldown_));
  options.cooldown_min = std::chrono::seconds(low);
  options.cooldown_max = std::chrono::seconds(high);
  return {};
}

Status ElasticFlags::check_without_discovery() const {
  for (const auto& [flag, value] :
       {std::pair("--max-workers", workers_max_), std::pair("--slots-per-host", slots_per_host_)})
    if (value)
      return Status::fix_call(
          format_text("{} is for --host-discovery-script; leave it out, or give both", flag));
  return {};
}

Result<DiscoveryPlan> ElasticFlags::discovery(std::optional<int> workers,
                                              const Membership::Options& elastic) const {
  if (discovery_->find_first_not_of(" \t\n") == std::string::npos)
    return Status::fix_call("--host-discovery-script is empty; give a command that lists hosts");
  const int workers_at_start = workers.value_or(elastic.workers_min);
  if (workers_at_start < elastic.workers_min || workers_at_start > elastic.workers_max)
    return Status::fix_call(
        format_text("-n is {}, but it must be between --min-workers {} and --max-workers {}",
                    workers_at_start, elastic.workers_min, elastic.workers_max));
  DiscoveryPlan plan{
      .program = *discovery_, .slots_at_start = workers_at_start, .slots_max = elastic.workers_max};
  if (slots_per_host_) {
    FARANDOLE_TRY_ASSIGN(plan.slots_default,
                         parse_whole_number("--slots-per-host", *slots_per_host_, 1, kWorkersMax));
  }
  return plan;
}

Result<std::optional<Membership::Options>> ElasticFlags::options(
    int workers, const FrameworkFlags& frameworks) const {
  FARANDOLE_TRY(check_unused());
  std::optional<Membership::Options> elastic;
  if (!workers_min_) return elastic;
  if (frameworks.any())
    return Status::fix_call(
        "--min-workers: TF_CONFIG and jax.distributed need a fixed number of workers, so leave out "
        "--min-workers, or --tf-config and --jax");
  elastic.emplace();
  elastic->workers = workers;
  elastic->workers_max = kWorkersMax;
  FARANDOLE_TRY_ASSIGN(elastic->workers_min,
                       parse_whole_number("--min-workers", *workers_min_, 1, kWorkersMax));
  if (elastic->workers_min > workers)
    return Status::fix_call(
        format_text("--min-workers is {}, but the job starts with {} worker{} (-n)",
                    elastic->workers_min, workers, workers == 1 ? "" : "s"));
  if (workers_max_) {
    FARANDOLE_TRY_ASSIGN(
        elastic->workers_max,
        parse_whole_number("--max-workers", *workers_max_, elastic->workers_min, kWorkersMax));
  }
  if (reset_limit_) {
    FARANDOLE_TRY_ASSIGN(elastic->resets_max, parse_whole_number("--reset-limit", *reset_limit_, 0,
                                                                 std::numeric_limits<int>::max()));
  }
  if (cooldown_) FARANDOLE_TRY(read_cooldown(*elastic));
  if (timeout_) {
    FARANDOLE_TRY_ASSIGN(const int seconds,
                         parse_whole_number("--elastic-timeout", *timeout_, 1, kSecondsMax));
    elastic->shortage_max = std::chrono::seconds(seconds);
  }
  return elastic;
}

}  // namespace farandole
