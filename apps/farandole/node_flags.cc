#include "node_flags.h"

#include <cstdio>
#include <cstdlib>

#include "base/format.h"
#include "base/try.h"
#include "nodes/scheduler_task.h"

namespace farandole {
namespace {

// A worker inherits the variables of the scheduler that has started its job. But these variables do
// not describe a `farandole run` inside the worker, so this function ignores them there.
Result<std::optional<SchedulerTask>> scheduler_task() {
  const auto environment = [](const char* name) { return std::getenv(name); };
  if (environment("FARANDOLE_RANK") != nullptr) return std::optional<SchedulerTask>();
  return find_scheduler_task(environment);
}

}  // namespace

NodeFlags::NodeFlags(CLI::App& command)
    : hosts_(command,
             "The hosts on which the job starts over ssh, and how many workers each can have. Then "
             "-n is the number of all workers") {
  const auto add = [&](const char* flag, const char* type, std::optional<std::string>& value,
                       const char* help) {
    command.add_option(flag, value, help)
        ->type_name(type)
        ->group("Several hosts")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  };
  add("--join", "HOST:PORT", flag_values_.join,
      "Where the nodes of the job meet: an address of the host of node 0, and a free port there");
  add("--nodes", "N", flag_values_.nodes,
      "How many nodes the job has: one for each `farandole run`");
  add("--node", "K", flag_values_.node, "The number of this node, from 0 to N - 1");
  add("--secret", "FILE", flag_values_.secret,
      "The file with the secret of the job, the same on all hosts; see `farandole secret`");
}

Result<std::optional<NodeOptions>> NodeFlags::node_options() const {
  if (!names_hosts() && hosts_.has_ssh_flags())
    return Status::fix_call(
        "a flag for ssh was given, but no hosts; name the hosts with -H or --hostfile");
  const bool is_complete = flag_values_.join && flag_values_.nodes && flag_values_.node;
  const bool is_one_host =
      flag_values_.nodes == "1" && !flag_values_.join && !flag_values_.node && !flag_values_.secret;
  std::optional<SchedulerTask> task;
  if (!is_complete && !is_one_host) {
    FARANDOLE_TRY_ASSIGN(task, scheduler_task());
  }
  FARANDOLE_TRY_ASSIGN(const CompletedFlagValues completed,
                       complete_node_flags(flag_values_, task));
  if (!completed.notice.empty()) std::fprintf(stderr, "farandole: %s\n", completed.notice.c_str());
  return parse_node_options(completed.flag_values);
}

bool NodeFlags::scheduler_has_started_us() {
  const auto task = scheduler_task();
  return task.ok() && task.value().has_value();
}

Result<std::vector<HostEntry>> NodeFlags::hosts(std::optional<int> workers) const {
  if (flag_values_.join || flag_values_.nodes || flag_values_.node || flag_values_.secret)
    return Status::fix_call(
        "-H and --hostfile start all nodes, so leave --join, --nodes, --node and --secret out");
  FARANDOLE_TRY_ASSIGN(const auto task, scheduler_task());
  if (task && task->nodes.value_or(1) > 1)
    return Status::fix_call(
        format_text("{}, and each of them would start the whole job; start this command once, or "
                    "leave -H and --hostfile out",
                    number_of_processes_text(*task)));
  FARANDOLE_TRY_ASSIGN(const std::vector<HostEntry> listed, hosts_.listed_hosts());
  return assign_workers(listed, workers);
}

}  // namespace farandole
