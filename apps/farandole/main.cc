// main() of the `farandole` command. The work is done in the other files of this folder and in
// src/.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/try.h"
#include "bench_options.h"
#include "bench_worker.h"
#include "completion.h"
#include "doctor.h"
#include "doctor_hosts.h"
#include "driver/driver.h"
#include "driver/launcher_session.h"
#include "driver/relayed_launcher.h"
#include "knob_table.h"
#include "launcher/foreground_process.h"
#include "nodes/secret_file.h"
#include "output/colors.h"
#include "probe/prober.h"
#include "remote/own_host.h"
#include "run_options.h"
#include "status.h"
#include "workers/python_choice.h"

namespace {

constexpr int kUsageError = 2;
constexpr const char* kRunHelp = "farandole run --help";

constexpr const char* kCompletionFooter = R"(
Add one of these lines to the start-up file of your shell:
  bash: source <(farandole completion bash)
  zsh:  source <(farandole completion zsh)
  fish: farandole completion fish | source
)";

constexpr const char* kSecretFooter = R"(
The file has 32 random bytes, and only you can read it. Copy it to all hosts of the job, for example
with `scp -p`, and give it to `farandole run --secret FILE`. Everyone who has the file can join the
job and read its data. Remove it when no job uses it any more.
)";

// The command can be started with closed standard streams (`<&- >&-`). Without this function, the
// next files that we open would get the numbers of these streams. Text for the standard output
// would then be written to these files.
void open_closed_standard_descriptors() {
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(number, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != number) std::abort();
}

// The words before and after the first `--`. The parser gets only the first part, because it would
// also look for its own options in the second part.
struct CommandLine {
  std::vector<std::string> before_dashes;
  std::vector<std::string> after_dashes;
};

CommandLine split_at_dashes(int count, char** arguments) {
  const std::vector<std::string> words(arguments + 1, arguments + count);
  const auto dashes = std::find(words.begin(), words.end(), "--");
  return {{words.begin(), dashes}, {dashes == words.end() ? dashes : dashes + 1, words.end()}};
}

int report_usage_error(const char* command_name, const std::string& why, const char* help) {
  const auto text =
      farandole::red_on_terminal(STDERR_FILENO, std::string(command_name) + ": " + why);
  std::fprintf(stderr, "%s\nSee `%s`.\n", text.c_str(), help);
  return kUsageError;
}

// Checks that all text was written, so that the command fails if the disk is full.
int exit_code_after_flush(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  std::fprintf(stderr, "farandole: the standard output could not be written (%s)\n",
               std::strerror(errno));
  return code == 0 ? 1 : code;
}

int report_run_error(const std::string& why) {
  return report_usage_error("farandole run", why, kRunHelp);
}

int run_on_this_host(farandole::JobOptions job) {
  if (job.workers == 0) return farandole::run_job(job);  // the program runs only on other hosts
  const auto python = farandole::choose_python(job.command.front());
  job.command.front() = python.program;
  if (!python.other_path.empty() && !(job.has_driver && job.nodes->node != 0))
    std::fprintf(stderr,
                 "farandole: starting %s, which is in the folder of this command; PATH has %s\n",
                 python.program.c_str(), python.other_path.c_str());
  return farandole::run_job(job);
}

int list_hosts(const farandole::DriverPlan& plan) {
  for (const auto& host : plan.hosts) std::printf("%s %d\n", host.name.c_str(), host.slots);
  return exit_code_after_flush(0);
}

int run_job_command(const farandole::RunOptions& options,
                    const std::vector<std::string>& after_dashes) {
  farandole::RunOptions::Overrides overrides;
  if (options.only_lists_hosts() && !options.names_hosts())
    return report_run_error("--list-hosts needs the hosts: give -H HOSTS or --hostfile FILE");
  if (options.names_hosts()) {
    auto plan = options.plan(after_dashes);
    if (!plan.ok()) return report_run_error(plan.status().message());
    if (options.only_lists_hosts()) return list_hosts(*plan);
    plan->program = farandole::path_of_program();
    plan->version = FARANDOLE_VERSION;
    if (plan->discovery) return farandole::run_driver(*plan);
    const auto& first_host = plan->hosts.front();
    if (plan->hosts.size() > 1 || !farandole::is_own_host(first_host))
      return farandole::run_driver(*plan);
    overrides.workers = first_host.slots;
  }
  auto job = options.job(after_dashes, overrides);
  return job.ok() ? run_on_this_host(*std::move(job)) : report_run_error(job.status().message());
}

farandole::Result<farandole::JobOptions> make_job_options(
    const farandole::LauncherSession& session) {
  FARANDOLE_TRY(session.apply_order());
  CLI::App app;
  const farandole::RunOptions options(app);
  std::vector<std::string> words(session.order().flags.rbegin(), session.order().flags.rend());
  words.emplace_back("run");
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    return farandole::Status::fix_call(error.what());
  }
  FARANDOLE_TRY_ASSIGN(farandole::NodeOptions nodes, session.node_options());
  return options.job(session.order().program, {.nodes = std::move(nodes)});
}

// Runs this host's part of a job that a driver has started.
int run_for_driver() {
  const auto session = farandole::LauncherSession::begin(FARANDOLE_VERSION);
  if (!session.ok() && session.status().message().empty()) return 1;
  if (!session.ok())
    return report_usage_error("farandole agent", session.status().message(), kRunHelp);
  auto job = make_job_options(*session);
  if (!job.ok()) return report_run_error(session->order().host + ": " + job.status().message());
  job->has_driver = true;
  job->output.always_has_colors = session->order().has_colors;
  job->output.box_columns = static_cast<int>(session->order().columns);
  job->secret.descriptor = session->secret_descriptor();
  const auto& relayed = session->order().relayed;
  if (!relayed) return run_on_this_host(*std::move(job));
  return farandole::run_relayed_launcher(*relayed, job->workers, [&](const auto& caller) {
    job->caller = caller;
    return run_on_this_host(*std::move(job));
  });
}

int run_doctor_command(const farandole::DoctorHosts& hosts, bool as_json) {
  const auto report_doctor_error = [](const farandole::Status& why) {
    return report_usage_error("farandole doctor", why.message(), "farandole doctor --help");
  };
  const auto names_hosts = hosts.names_hosts();
  if (!names_hosts.ok()) return report_doctor_error(names_hosts.status());
  if (!*names_hosts) return exit_code_after_flush(farandole::run_doctor(as_json));
  const auto code = hosts.run(as_json);
  return code.ok() ? exit_code_after_flush(*code) : report_doctor_error(code.status());
}

int run_bench_command(const farandole::BenchOptions& options,
                      const std::vector<std::string>& words) {
  const auto report_bench_error = [](const farandole::Status& why) {
    return report_usage_error("farandole bench", why.message(), "farandole bench --help");
  };
  const auto plan = options.plan();
  if (!plan.ok()) return report_bench_error(plan.status());
  if (options.is_worker()) return farandole::run_bench_worker(*plan);
  const auto job = options.job(*plan, words);
  return job.ok() ? farandole::run_job(*job) : report_bench_error(job.status());
}

int print_completion(const CLI::App& app, const std::string& shell) {
  const std::string script = farandole::completion_script(app, shell);
  if (script.empty())
    return report_usage_error(
        "farandole completion",
        "there is no completion for the shell \"" + shell +
            "\"; give bash, zsh or fish, for example `farandole completion bash`",
        "farandole completion --help");
  std::fputs(script.c_str(), stdout);
  return exit_code_after_flush(0);
}

int make_secret(const std::string& path) {
  const auto status = path.empty() ? farandole::Status::fix_call(
                                         "which file? For example `farandole secret "
                                         "job.secret`")
                                   : farandole::make_secret_file(path);
  if (status.ok()) return 0;
  return report_usage_error("farandole secret", status.message(), "farandole secret --help");
}

// Shortens the parser's error text to the flag and the reason.
std::string shortened_error(const CLI::ParseError& error) {
  const std::string text = error.what();
  if (const auto end = text.find(" was given a disallowed flag override"); end != text.npos)
    return "--" + text.substr(0, end) + ": this flag takes no value";
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr)
    return text.substr(0, text.find(':')) + " needs a value";
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr)
    return text.substr(text.find(':') + 2) + ": this flag takes no value";
  return text;
}

int print_knobs(bool as_markdown) {
  const auto table = as_markdown ? farandole::knob_table_markdown() : farandole::knob_table_text();
  std::fputs(table.c_str(), stdout);
  return exit_code_after_flush(0);
}

int report_unknown_command(const std::vector<std::string>& words) {
  return report_usage_error(
      "farandole",
      "there is no command `" + (words.empty() ? "--" : words.front()) +
          "`; the commands are run, status, bench, doctor, secret, knobs and completion; "
          "to start a program, use `farandole run -n 2 python train.py`",
      "farandole --help");
}

}  // namespace

int main(int count, char** arguments) {
  open_closed_standard_descriptors();
  if (count == 2 && std::string_view(arguments[1]) == "agent") return run_for_driver();
  if (count == 2 && std::string_view(arguments[1]) == "probe")
    return farandole::run_probe(FARANDOLE_VERSION);
  CLI::App app(
      "Farandole runs one training script on many workers.\n"
      "`farandole run -n 2 python train.py` starts two of them on this host.",
      "farandole");
  app.set_version_flag("--version", "farandole " FARANDOLE_VERSION);
  app.allow_extras();
  app.footer("\n`farandole run --help` explains how to start, watch and end a job.");
  const farandole::RunOptions run_options(app);
  const farandole::BenchOptions bench_options(app);
  bool as_markdown = false;
  auto* knobs = app.add_subcommand("knobs", "Print all settings, their values and defaults");
  knobs->add_flag("--markdown", as_markdown, "As a Markdown table");
  knobs->allow_extras(false);
  bool as_json = false;
  auto* doctor_command = app.add_subcommand(
      "doctor", "Show what works on this machine or between hosts, and why something does not");
  doctor_command->add_flag("--json", as_json,
                           "As a JSON list of objects; with -H, as one JSON object");
  doctor_command->allow_extras(false);
  const farandole::DoctorHosts doctor_hosts(*doctor_command);
  std::string job_pid;
  auto* status = app.add_subcommand("status", "Show your jobs on this host, rank by rank");
  status->add_option("job", job_pid, "The process id of one `farandole run`")->type_name("JOB");
  status->add_flag("--json", as_json, "As a JSON list of objects");
  status->footer(farandole::kStatusFooter);
  status->allow_extras(false);
  std::string secret_path;
  auto* secret = app.add_subcommand("secret", "Make a secret for a job over several hosts");
  secret->add_option("file", secret_path, "The file to make; it must not exist")->type_name("FILE");
  secret->footer(kSecretFooter);
  secret->allow_extras(false);
  std::string shell;
  auto* completion = app.add_subcommand("completion", "Print a script that completes our commands");
  completion->add_option("shell", shell, "bash, zsh or fish")->type_name("SHELL");
  completion->footer(kCompletionFooter);
  completion->allow_extras(false);
  if (count == 1) {
    std::fputs(app.help().c_str(), stderr);
    return kUsageError;
  }
  CommandLine line = split_at_dashes(count, arguments);
  const bool is_run = !line.before_dashes.empty() && line.before_dashes.front() == "run";
  if (is_run) {
    auto parser_words = run_options.checked_words(line.before_dashes);
    if (!parser_words.ok()) return report_run_error(parser_words.status().message());
    line.before_dashes = *std::move(parser_words);
  }
  try {
    // The parser expects the arguments in reverse order.
    app.parse(std::vector<std::string>(line.before_dashes.rbegin(), line.before_dashes.rend()));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help or --version
    const std::string why = shortened_error(error);
    return is_run ? report_run_error(why)
                  : report_usage_error("farandole", why, "farandole --help");
  }
  if (run_options.is_chosen()) return run_job_command(run_options, line.after_dashes);
  if (bench_options.is_chosen()) return run_bench_command(bench_options, line.before_dashes);
  if (doctor_command->parsed()) return run_doctor_command(doctor_hosts, as_json);
  if (status->parsed()) return exit_code_after_flush(farandole::run_status(job_pid, as_json));
  if (secret->parsed()) return make_secret(secret_path);
  if (completion->parsed()) return print_completion(app, shell);
  return knobs->parsed() ? print_knobs(as_markdown) : report_unknown_command(app.remaining());
}
