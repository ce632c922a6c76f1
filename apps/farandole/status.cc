#include "status.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/format.h"
#include "base/visible_text.h"
#include "base/whole_number.h"
#include "jobs/job_list.h"
#include "output/colors.h"

namespace farandole {
namespace {

using OrderedJson = nlohmann::ordered_json;

double as_seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

OrderedJson as_json_value(const std::optional<RecordedCall>& call) {
  if (!call) return nullptr;
  return {{"operation", row_of(call->operation).name},
          {"name", call->name},
          {"group", call->group},
          {"dtype", row_of(call->dtype).name},
          {"elements", call->elements}};
}

OrderedJson as_json_value(const RankStatus& status, std::size_t rank, TimePoint now) {
  OrderedJson value{
      {"rank", rank}, {"host", status.host}, {"pid", status.pid}, {"state", name_of(status.state)}};
  value["cores"] = status.cores.empty() ? OrderedJson() : OrderedJson(status.cores);
  value["seconds"] =
      status.since ? OrderedJson(std::max(0.0, as_seconds(now - *status.since))) : OrderedJson();
  value["reason"] = status.reason;
  value["call"] = as_json_value(status.call);
  value["waits_for"] = status.waits_for;
  value["calls"] = status.counts.calls;
  value["bytes"] = status.counts.bytes;
  value["waited_seconds"] = as_seconds(status.counts.blocked);
  value["in_job_seconds"] =
      status.time_in_job ? OrderedJson(as_seconds(*status.time_in_job)) : OrderedJson();
  return value;
}

std::string json_text(const std::vector<JobStatus>& jobs) {
  auto list = OrderedJson::array();
  for (const JobStatus& job : jobs) {
    auto ranks = OrderedJson::array();
    for (const RankStatus& status : job.ranks)
      ranks.push_back(as_json_value(status, ranks.size() + static_cast<std::size_t>(job.first_rank),
                                    job.read_at));
    list.push_back({{"pid", job.pid},
                    {"host", job.host},
                    {"command", job.command},
                    {"seconds", std::max(0.0, as_seconds(job.read_at - job.started))},
                    {"size", job.size},
                    {"ranks", std::move(ranks)}});
  }
  // Names may contain bytes that are not UTF-8.
  return list.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

TableStyle style_of_output() {
  TableStyle style{.has_colors = can_show_colors(STDOUT_FILENO)};
  winsize terminal_size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &terminal_size) == 0 && terminal_size.ws_col > 0)
    style.columns = terminal_size.ws_col;
  return style;
}

std::string as_tables(const std::vector<JobStatus>& jobs) {
  std::string text;
  for (const JobStatus& job : jobs) {
    if (!text.empty()) text += '\n';
    for (const auto& line : job_table(job, style_of_output())) text += line + "\n";
  }
  return text;
}

void print_error(const std::string& text) {
  std::fprintf(stderr, "%s\n", red_on_terminal(STDERR_FILENO, "farandole status: " + text).c_str());
}

}  // namespace

const char* const kStatusFooter = R"(
Examples:
  farandole status
  farandole status 4711 --json

The columns show how many calls succeeded; the bytes of the tensors of all calls; how long the
program was blocked in calls, because it waited for other ranks or because data moved; and the share
of its time in the job during which it was blocked. The other ranks wait for the rank with the
smallest share.

If a job has several hosts, the command shows all its ranks on the host of node 0, and on the other
hosts the ranks there. Node 0 knows what ranks on other hosts did a few seconds ago.

If ranks are bound to cores (`farandole run --bind-to`), a column shows the hardware threads of each
rank, with the numbers that Linux gives them, such as 0-3.

--json writes a list of objects with pid, host, command, seconds, size and ranks. Each rank has
rank, host, pid, state, cores (as in the table), seconds (in this state), reason, call (operation,
name, group, dtype, elements), waits_for, calls, bytes, waited_seconds and in_job_seconds. An
unknown value is null. A state is outside (has not called init()), init, computes, waits, runs,
joined, stopped, left or ended.

The exit code is 0 if there is a job to show, otherwise 1. The command sends no message to the jobs:
it reads the memory of their launchers, which the kernel allows to the same user.
)";

int run_status(const std::string& job, bool as_json) {
  int wanted_pid = 0;
  if (!job.empty()) {
    const auto number = parse_whole_number("JOB", job, 1, std::numeric_limits<int>::max());
    if (!number.ok()) {
      print_error(number.status().message() + ", the process id of its `farandole run`");
      return 2;
    }
    wanted_pid = *number;
  }
  JobList list = running_jobs();
  for (const pid_t pid : list.unreadable_launchers)
    print_error(
        format_text("the job of process {} cannot be read; it may be of another version of "
                    "Farandole, whose own `farandole status` can show it",
                    pid));
  if (wanted_pid != 0)
    std::erase_if(list.jobs, [&](const auto& job_status) { return job_status.pid != wanted_pid; });
  if (as_json)
    std::fputs(json_text(list.jobs).c_str(), stdout);
  else
    std::fputs(as_tables(list.jobs).c_str(), stdout);
  if (!list.jobs.empty()) return 0;
  print_error(wanted_pid != 0 ? format_text("no job {} of yours runs on this host", wanted_pid)
                              : "no job of yours runs on this host");
  return 1;
}

}  // namespace farandole
