#include "run_options.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/descriptor.h"
#include "base/format.h"
#include "base/knobs.h"
#include "base/system_files.h"
#include "base/try.h"
#include "base/visible_text.h"
#include "base/whole_number.h"
#include "foreign_flags.h"
#include "launcher/channel_door.h"
#include "launcher/signal_setup.h"
#include "network/tcp/listen_knobs.h"
#include "rank_list.h"
#include "remote/working_folder.h"
#include "workers/core_binding.h"
#include "workers/framework_variables.h"
#include "workers/worker_environment.h"

namespace farandole {
namespace {

constexpr int kGraceSecondsMax = 24 * 3600;

constexpr const char* kRunFooter = R"(
Examples:
  farandole run -n 2 python train.py --epochs 3
  farandole run -n 4 --tag-rank 0 --output-dir log -- ./train

Everything after the program's name belongs to the program.

Every line of a worker's output begins with its rank, or with the text of --prefix. If the launcher
writes to a terminal, the workers do so too, so progress bars and colors work; with NO_COLOR=1,
the launcher uses no colors. The standard input of all workers is empty (/dev/null). Workers get
OMP_NUM_THREADS = cores / workers and PYTHONUNBUFFERED=1 unless you have set them. They keep freed
memory for new tensors, all together up to a quarter of the memory, unless you have set
GLIBC_TUNABLES (an empty value will do) or a variable MALLOC_… of glibc.

--bind-to core gives each worker an equal part of the cores that the launcher may use, and
--bind-to socket gives it all those that are on one socket; OMP_NUM_THREADS follows. Do not bind
jobs that share a host: each launcher would choose the same cores. `farandole doctor` shows the
cores.

--tf-config and --jax are for programs that use the collectives of TensorFlow or JAX themselves:
  farandole run -n 2 --tf-config python train.py    (tf.distribute.MultiWorkerMirroredStrategy())
  farandole run -n 2 --jax python train.py          (jax.distributed.initialize())
The servers of these frameworks listen at ports that the launcher chooses, and ask for no secret.
With --jax, each worker uses the GPU with its local rank, unless JAX_LOCAL_DEVICE_IDS is set.

--output-dir DIR also writes the unchanged output of each worker to DIR/rank.<NN>/stdout and stderr.
Missing folders are made; existing files of these names are overwritten, other files in DIR stay. If
a file cannot be written any more, the launcher says so once and the job goes on.

With -H or --hostfile, the job starts on several hosts over ssh, which must work without a password.
Then -n is the number of all workers:
  farandole run -H host1:4,host2:4 python train.py
Without ssh, start the same command on each host. Only the number after --node differs, and -n may
differ. Node 0 runs on the host of --join, and its ranks come first:
  farandole secret job.secret    (once; then copy the file to all hosts, with mode 0600)
  farandole run --join HOST:PORT --nodes 2 --node 0 --secret job.secret -n 4 python train.py
  farandole run --join HOST:PORT --nodes 2 --node 1 --secret job.secret -n 4 python train.py
The order of starting does not matter. --start-timeout limits how long a node waits for the others.
If a node fails, the others end, too, unless the job is elastic. Node 0 shows the reason, and all
nodes have the exit code of that node.

An elastic job goes on when a worker fails:
  farandole run -n 4 --min-workers 2 python train.py
The other workers keep their processes: their next call ends with an error, which elastic.run()
catches, and they form a group without that worker. A new worker joins them at a later commit.
Hosts may come and go:
  farandole run -n 4 --min-workers 2 --host-discovery-script ./hosts.sh python train.py

If the job is not elastic and a worker fails, the others have 5 s to end with an error of their own.
Then they get SIGTERM, and 5 s later SIGKILL. The exit code is that of the worker that failed first
(128 + N for signal N). If that worker ended with exit code 0, the exit code is that of the next
worker that failed.
The first SIGINT, SIGTERM, SIGHUP or SIGQUIT is passed on to the workers; the exit code is then
128 + N. A second one of these signals kills the job. When all workers have ended without failing,
processes that they have left behind have 2 s to end. Then these get SIGTERM, and 2 s later SIGKILL.
When the command returns, no process of the job is left.
)";

// Adds the program to the usage line, because the parser does not know about it.
class RunFormatter final : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: farandole run -n N [options] program [arguments...]\n";
  }
};

const char* type_name(KnobType type) {
  if (type == KnobType::kText) return "TEXT";
  return type == KnobType::kInteger ? "N" : "WORD";
}

// Whether the launcher sets this variable in every worker.
bool is_set_by_launcher(std::string_view name) {
  if (name == "FARANDOLE_ELASTIC_WORKER") return true;
  for (const auto& variables : {rank_variables({}, 0, {}, {}), torchrun_variables({}, 0, {})})
    for (const auto& [variable, value] : variables)
      if (variable == name) return true;
  return false;
}

// Each worker needs a port. If a driver has started the launchers, the launcher of node 0 needs a
// port, too.
Status check_ports(const PortRange& range, int workers, bool launcher_listens) {
  const int ports = range.last - range.first + 1;
  const int ports_needed = workers + (launcher_listens ? 1 : 0);
  if (range.first == 0 || ports >= ports_needed) return {};
  return Status::fix_call(format_text(
      "FARANDOLE_PORTS (--ports) has {} of the {} ports that the {} of this host need; give a "
      "range such as {}-{}, or a larger one if the program makes groups of its own",
      ports, ports_needed, launcher_listens ? "launcher and the workers" : "workers", range.first,
      range.first + ports_needed - 1));
}

// The channels stay open until this process ends.
Status open_channels(JobOptions& job) {
  for (int rank = 0; rank < job.workers && job.caller.door >= 0; ++rank) {
    FARANDOLE_TRY_ASSIGN(Descriptor channel, open_channel(job.caller.door, rank));
    job.caller.channels.push_back(channel.release());
  }
  return {};
}

// Parses "NAME=VALUE", or "NAME", which means the value of this variable in the launcher's
// environment.
Result<std::pair<std::string, std::string>> parse_variable(const std::string& text) {
  const auto equals_sign = text.find('=');
  std::string name = text.substr(0, equals_sign);
  if (!is_variable_name(name))
    return Status::fix_call(
        format_text("-x \"{}\": \"{}\" is not the name of a variable; a name has letters, digits "
                    "and _, and does not begin with a digit",
                    text, name));
  if (is_set_by_launcher(name))
    return Status::fix_call(format_text(
        "-x \"{}\": the launcher sets {} in every worker; leave this -x out", text, name));
  if (name == "FARANDOLE_SECRET")
    return Status::fix_call(format_text(
        "-x \"{}\": the workers do not read FARANDOLE_SECRET, because the launcher gives "
        "them the secret of the job; leave this -x out (the launchers of a job with "
        "--join take the secret from --secret)",
        text));
  if (equals_sign != std::string::npos)
    return std::pair(std::move(name), text.substr(equals_sign + 1));
  const char* value = std::getenv(name.c_str());
  if (value == nullptr)
    return Status::fix_call(
        format_text("-x {0}: {0} is not set here; set it, or write `-x {0}=VALUE`", name));
  return std::pair(std::move(name), std::string(value));
}

}  // namespace

RunOptions::RunOptions(CLI::App& app)
    : command_(app.add_subcommand(
          "run", "Start a program N times, on this host or on several, as one job")),
      nodes_(*command_),
      caller_(*command_),
      elastic_(*command_) {
  command_->footer(kRunFooter);
  command_->prefix_command();
  // If a flag is given twice, the last value is used, so that users can append flags to a stored
  // command.
  command_->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  command_->formatter(std::make_shared<RunFormatter>());
  command_
      ->add_option("-n,--workers", workers_,
                   "How many workers to start: on this host, or on all hosts of -H or --hostfile")
      ->type_name("N");
  command_
      ->add_option("-x", variables_,
                   "Sets a variable for the workers, or passes on the one that is set here; may be "
                   "given several times")
      ->type_name("VAR[=VALUE]")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  command_
      ->add_option("--output-dir", output_folder_,
                   "Also writes the output of each rank to files of its own (see below)")
      ->type_name("DIR");
  command_
      ->add_option("--prefix", prefix_,
                   "The text before every line; the fields are " + LinePrefix::field_names() +
                       "; {{ and }} are braces, and \"\" means no prefix")
      ->type_name("TEMPLATE")
      ->capture_default_str();
  command_
      ->add_option("--tag-rank", shown_ranks_,
                   "Shows the output of these ranks only, such as 0 or 0,2-3. The launcher's own "
                   "messages are always shown, and --output-dir writes the files of all ranks")
      ->type_name("RANKS");
  command_
      ->add_option("--bind-to", bind_to_,
                   "Which cores each worker may use: core (an equal part of them), socket, or none "
                   "(all of them; see below)")
      ->type_name("PART")
      ->capture_default_str();
  command_
      ->add_flag("--tf-config", frameworks_.tf_config,
                 "Sets TF_CONFIG for tf.distribute.MultiWorkerMirroredStrategy() of TensorFlow "
                 "(see below)")
      ->disable_flag_override();
  command_
      ->add_flag("--jax", frameworks_.jax,
                 "Sets variables with which jax.distributed.initialize() needs no arguments (see "
                 "below)")
      ->disable_flag_override();
  command_
      ->add_option(
          "--grace-time", grace_seconds_,
          "Seconds that workers have to end after they received a signal, before they are killed")
      ->type_name("S")
      ->capture_default_str();
  add_knobs();
}

void RunOptions::add_knobs() {
  for (const KnobRow& row : kKnobs) {
    if (row.flag.empty()) continue;
    const std::string flag(row.flag);
    const std::string default_text = value_text(row, Knobs());
    const std::string help = format_text("{} Sets {}; default {}.", row.help, row.name,
                                         default_text.empty() ? "none" : default_text);
    if (type_of(row) == KnobType::kSwitch)
      command_->add_flag_callback(flag, [this, flag] { knob_flags_[flag] = "1"; }, help);
    else
      command_
          ->add_option_function<std::string>(
              flag, [this, flag](const std::string& value) { knob_flags_[flag] = value; }, help)
          ->type_name(type_name(type_of(row)));
  }
}

Result<std::vector<std::string>> RunOptions::checked_words(
    const std::vector<std::string>& words) const {
  std::vector<std::string> parser_words = {words.front()};
  auto word = words.begin() + 1;
  for (; word != words.end() && word->starts_with('-'); ++word) {
    const std::string name = word->substr(0, word->find('='));
    const CLI::Option* option = command_->get_option_no_throw(name);
    const std::string_view hint = hint_for_foreign_flag(*word);
    if (option == nullptr && !hint.empty())
      return Status::fix_call(format_text("{} is a flag of horovodrun; here, {}", *word, hint));
    const bool takes_value = option != nullptr && option->get_items_expected_max() > 0;
    if (takes_value && *word == name + '=') {
      parser_words.insert(parser_words.end(), {name, ""});
      continue;
    }
    parser_words.push_back(*word);
    // The next word is the value of this flag.
    if (takes_value && *word == name && word + 1 != words.end()) parser_words.push_back(*++word);
  }
  parser_words.insert(parser_words.end(), word, words.end());
  return parser_words;
}

Result<std::vector<std::string>> RunOptions::program(
    const std::vector<std::string>& after_dashes) const {
  std::vector<std::string> program = command_->remaining();
  if (!program.empty() && program.front().starts_with('-'))
    return Status::fix_call("unknown option " + program.front());
  // A `--` after the program's name belongs to the program.
  if (!program.empty() && !after_dashes.empty()) program.push_back("--");
  program.insert(program.end(), after_dashes.begin(), after_dashes.end());
  if (program.empty())
    return Status::fix_call("which program? For example `farandole run -n 2 python train.py`");
  return program;
}

Result<OutputOptions> RunOptions::output(int size) const {
  OutputOptions output;
  auto prefix = LinePrefix::parse(prefix_);
  if (!prefix.ok())
    return Status::fix_call(
        format_text("--prefix \"{}\": {}", escape_controls(prefix_), prefix.status().message()));
  output.prefix = *std::move(prefix);
  if (command_->count("--tag-rank") > 0) {
    auto ranks = parse_rank_list(shown_ranks_, size);
    if (!ranks.ok())
      return Status::fix_call(
          format_text("--tag-rank \"{}\": {}", shown_ranks_, ranks.status().message()));
    output.shown_ranks = *std::move(ranks);
  }
  if (command_->count("--output-dir") > 0 && output_folder_.empty())
    return Status::fix_call("--output-dir \"\": which folder? For example `--output-dir log`");
  output.folder = output_folder_;
  return output;
}

Result<RunOptions::Variables> RunOptions::settings() const {
  Variables settings;
  Knobs checked_knobs;
  for (const std::string& text : variables_) {
    FARANDOLE_TRY_ASSIGN(const auto setting, parse_variable(text));
    if (const auto flag = flag_that_sets(setting.first, frameworks_); !flag.empty())
      return Status::fix_call(
          format_text("-x \"{}\": {} sets {} in every worker; leave one of them out", text, flag,
                      setting.first));
    settings[setting.first] = setting.second;
  }
  for (const KnobRow& row : kKnobs) {
    const auto flag = knob_flags_.find(std::string(row.flag));
    if (flag == knob_flags_.end()) continue;
    FARANDOLE_TRY(set_knob(checked_knobs, row, row.flag, flag->second));
    settings[std::string(row.name)] = flag->second;
  }
  return settings;
}

Result<std::chrono::seconds> RunOptions::grace() const {
  FARANDOLE_TRY_ASSIGN(const int seconds,
                       parse_whole_number("--grace-time", grace_seconds_, 0, kGraceSecondsMax));
  return std::chrono::seconds(seconds);
}

// Checks the values here, so that the user gets one error instead of one from each worker.
Result<Knobs> RunOptions::knobs(const Variables& settings) {
  Knobs knobs;
  FARANDOLE_TRY(read_knobs(knobs, [&](const char* name) -> const char* {
    const auto setting = settings.find(name);
    return setting != settings.end() ? setting->second.c_str() : std::getenv(name);
  }));
  FARANDOLE_TRY(parse_ports(knobs.ports).status());
  return knobs;
}

Result<JobOptions> RunOptions::job(const std::vector<std::string>& after_dashes,
                                   const Overrides& overrides) const {
  JobOptions job;
  FARANDOLE_TRY_ASSIGN(job.command, program(after_dashes));
  if (overrides.workers) {
    job.workers = *overrides.workers;
  } else if (command_->count("-n") == 0) {
    return Status::fix_call("how many workers? Say `-n N`, for example `farandole run -n 2 …`");
  } else {
    const bool may_have_no_workers = overrides.nodes && overrides.nodes->node == 0;
    FARANDOLE_TRY_ASSIGN(
        job.workers, parse_whole_number("-n", workers_, may_have_no_workers ? 0 : 1, kWorkersMax));
  }
  FARANDOLE_TRY_ASSIGN(job.grace, grace());
  FARANDOLE_TRY_ASSIGN(job.bind_to, parse_bind_to(bind_to_));
  job.frameworks = frameworks_;
  job.nodes = overrides.nodes;
  if (!job.nodes && command_->count("--caller") == 0) {
    FARANDOLE_TRY_ASSIGN(job.nodes, nodes_.node_options());
    // Under nohup, which ignores SIGHUP, the job must outlive the shell.
    job.ends_with_parent =
        job.nodes && NodeFlags::scheduler_has_started_us() && !is_ignored(SIGHUP);
  }
  job.secret.path = nodes_.secret_path();
  // Here, a node does not know yet how many workers the other nodes have.
  const int workers_max = job.nodes ? kWorkersMax : job.workers;
  if (!overrides.nodes) FARANDOLE_TRY(elastic_.check_without_discovery());
  FARANDOLE_TRY_ASSIGN(job.elastic, elastic_.options(workers_max, job.frameworks));
  FARANDOLE_TRY_ASSIGN(job.output, output(workers_max));
  FARANDOLE_TRY_ASSIGN(job.caller, caller_.descriptors(job.workers));
  FARANDOLE_TRY(open_channels(job));
  FARANDOLE_TRY_ASSIGN(const Variables variables, settings());
  job.variables = {variables.begin(), variables.end()};
  FARANDOLE_TRY_ASSIGN(const Knobs knobs, this->knobs(variables));
  job.stall_warning = stall_warning_time(knobs);
  if (job.elastic) job.elastic->notice_after = job.stall_warning;
  job.timeline_path = timeline_path_of(knobs);
  job.timeline_bytes = knobs.timeline_bytes;
  if (job.nodes) {
    job.nodes->workers = job.workers;
    job.nodes->version = FARANDOLE_VERSION;
    job.nodes->is_elastic = job.elastic.has_value();
    // Node 0 of an elastic job with a driver has no workers.
    job.nodes->reserves_master_port = job.nodes->node == (overrides.nodes && job.elastic ? 1 : 0);
    job.nodes->start_timeout = knobs.start_timeout;
    const bool launcher_listens = overrides.nodes && job.nodes->node == 0;
    FARANDOLE_TRY_ASSIGN(const PortRange ports, parse_ports(knobs.ports));
    FARANDOLE_TRY(check_ports(ports, job.workers, launcher_listens));
    if (launcher_listens)
      job.nodes->listen_choice = ListenChoice{parse_interfaces(knobs.network_interfaces), ports};
  }
  job.kept_bytes =
      static_cast<std::size_t>(kept_bytes_max_of_all_workers() / std::max(1, job.workers));
  return job;
}

// Returns the flags that the launchers on the hosts get.
Result<std::vector<std::string>> RunOptions::flags_for_launchers() const {
  std::vector<std::string> flags;
  for (const std::string& text : variables_) {
    FARANDOLE_TRY_ASSIGN(const auto variable, parse_variable(text));
    flags.insert(flags.end(), {"-x", variable.first + "=" + variable.second});
  }
  for (const CLI::Option* option : command_->get_options()) {
    if (option->count() == 0 || option->get_lnames().empty()) continue;
    const std::string flag = "--" + option->get_lnames().front();
    if (flag == "--workers" || flag == "--output-dir" || NodeFlags::is_for_driver(flag) ||
        ElasticFlags::is_for_driver(flag))
      continue;
    if (option->get_group() == CallerFlags::kHelpGroup) continue;  // the driver keeps these flags
    flags.push_back(flag);
    if (option->get_items_expected_max() > 0) flags.push_back(option->results().back());
  }
  return flags;
}

// Rejects flags that need a list of hosts that is known before the job starts. Errors: kFixCall.
Status RunOptions::check_discovery() const {
  std::string conflicting_flag;
  if (nodes_.names_hosts()) conflicting_flag = "-H or --hostfile";
  if (command_->count("--output-dir") > 0) conflicting_flag = "--output-dir";
  if (conflicting_flag.empty()) return {};
  return Status::fix_call(
      format_text("--host-discovery-script does not go together with {}; leave one of them out",
                  conflicting_flag));
}

Result<DriverPlan> RunOptions::plan(const std::vector<std::string>& after_dashes) const {
  DriverPlan plan;
  FARANDOLE_TRY_ASSIGN(plan.order.program, program(after_dashes));
  std::optional<int> workers;
  if (command_->count("-n") > 0) {
    FARANDOLE_TRY_ASSIGN(workers, parse_whole_number("-n", workers_, 1, kWorkersMax));
  }
  const bool discovers_hosts = elastic_.discovers_hosts();
  if (!discovers_hosts) {
    FARANDOLE_TRY(elastic_.check_without_discovery());
    FARANDOLE_TRY_ASSIGN(plan.hosts, nodes_.hosts(workers));
  }
  FARANDOLE_TRY_ASSIGN(plan.ssh, nodes_.ssh_options());
  const int size = discovers_hosts ? kWorkersMax : slots_of(plan.hosts);
  FARANDOLE_TRY_ASSIGN(plan.elastic, elastic_.options(size, frameworks_));
  if (discovers_hosts) {
    FARANDOLE_TRY(check_discovery());
    FARANDOLE_TRY_ASSIGN(plan.discovery, elastic_.discovery(workers, *plan.elastic));
  }
  FARANDOLE_TRY_ASSIGN(plan.caller, caller_.descriptors(size));
  // This finds most errors in the other flags before any process is started.
  FARANDOLE_TRY_ASSIGN(plan.grace, grace());
  FARANDOLE_TRY(parse_bind_to(bind_to_).status());
  FARANDOLE_TRY_ASSIGN(const OutputOptions output_options, output(size));
  plan.output_folder = output_options.folder;
  FARANDOLE_TRY_ASSIGN(const Variables variables, settings());
  FARANDOLE_TRY_ASSIGN(const Knobs checked_knobs, knobs(variables));
  plan.start_timeout =
      std::chrono::duration_cast<std::chrono::seconds>(checked_knobs.start_timeout);
  FARANDOLE_TRY_ASSIGN(plan.order.flags, flags_for_launchers());
  FARANDOLE_TRY_ASSIGN(plan.order.folder, working_folder());
  return plan;
}

}  // namespace farandole
