#include "node_flags.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "base/format.h"
#include "base/system_files.h"
#include "base/try.h"
#include "base/visible_text.h"
#include "base/whole_number.h"
#include "nodes/scheduler_task.h"

namespace farandole {
namespace {

constexpr int kPortMax = 65535;

// A worker inherits the variables of the scheduler that has started its job, so they say nothing
// about a `farandole run` in it.
Result<std::optional<SchedulerTask>> scheduler_task() {
  const auto environment = [](const char* name) { return std::getenv(name); };
  if (environment("FARANDOLE_RANK") != nullptr) return std::optional<SchedulerTask>();
  return find_scheduler_task(environment);
}

}  // namespace

NodeFlags::NodeFlags(CLI::App& command) {
  const auto add = [&](const char* flag, const char* type, std::optional<std::string>& value,
                       const char* help) {
    command.add_option(flag, value, help)
        ->type_name(type)
        ->group("Several hosts")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  };
  add("-H,--hosts", "HOST:SLOTS,...", hosts_,
      "The hosts on which the job starts over ssh, and how many workers each can have. Then -n is "
      "the number of all workers");
  add("--hostfile", "FILE", hostfile_,
      "The same, from a file with a line for each host, such as `hen slots=4` or `hen:4`");
  add("-p,--ssh-port", "PORT", ssh_port_, "The port of ssh on the hosts");
  add("-i,--ssh-identity-file", "FILE", ssh_identity_file_, "The private key for ssh");
  command
      .add_flag("--ssh-accept-new-hosts", ssh_accept_new_hosts_,
                "Lets ssh accept the keys of hosts that it does not know yet")
      ->group("Several hosts");
  add("--join", "HOST:PORT", words_.join,
      "Where the nodes of the job meet: an address of the host of node 0, and a free port there");
  add("--nodes", "N", words_.nodes, "How many nodes the job has: one for each `farandole run`");
  add("--node", "K", words_.node, "The number of this node, from 0 to N - 1");
  add("--secret", "FILE", words_.secret,
      "The file with the secret of the job, the same on all hosts; see `farandole secret`");
}

bool NodeFlags::is_for_driver(std::string_view flag) {
  constexpr std::array<std::string_view, 5> kFlags{"--hosts", "--hostfile", "--ssh-port",
                                                   "--ssh-identity-file", "--ssh-accept-new-hosts"};
  return std::ranges::find(kFlags, flag) != kFlags.end();
}

Result<std::optional<NodeOptions>> NodeFlags::options() const {
  if (!has_hosts() && (ssh_port_ || ssh_identity_file_ || ssh_accept_new_hosts_))
    return Status::fix_call(
        "a flag for ssh was given, but no hosts; name the hosts with -H or --hostfile");
  const bool is_complete = words_.join && words_.nodes && words_.node;
  const bool is_one_host = words_.nodes == "1" && !words_.join && !words_.node && !words_.secret;
  std::optional<SchedulerTask> task;
  if (!is_complete && !is_one_host) {
    FARANDOLE_TRY_ASSIGN(task, scheduler_task());
  }
  FARANDOLE_TRY_ASSIGN(const CompletedWords completed, complete_node_words(words_, task));
  if (!completed.notice.empty()) std::fprintf(stderr, "farandole: %s\n", completed.notice.c_str());
  return parse_node_options(completed.words);
}

bool NodeFlags::scheduler_has_started_us() {
  const auto task = scheduler_task();
  return task.ok() && task.value().has_value();
}

Result<std::vector<HostEntry>> NodeFlags::hosts(std::optional<int> workers) const {
  if (hosts_ && hostfile_) return Status::fix_call("give -H or --hostfile, not both");
  if (words_.join || words_.nodes || words_.node || words_.secret)
    return Status::fix_call(
        "-H and --hostfile start all nodes, so leave --join, --nodes, --node and --secret out");
  FARANDOLE_TRY_ASSIGN(const auto task, scheduler_task());
  if (task && task->nodes.value_or(1) > 1)
    return Status::fix_call(format_text(
        "{} has started this command {} times, and each of them would start the whole job; start "
        "it once, or leave -H and --hostfile out",
        task->scheduler, *task->nodes));
  std::vector<HostEntry> listed;
  if (hosts_) {
    FARANDOLE_TRY_ASSIGN(listed, parse_hosts(*hosts_));
  } else {
    const auto text = file_text(*hostfile_);
    if (!text)
      return Status::fix_call(
          format_text("--hostfile: the file \"{}\" cannot be read", escape_controls(*hostfile_)));
    FARANDOLE_TRY_ASSIGN(listed, parse_hostfile(*text, *hostfile_));
  }
  return assign_workers(listed, workers);
}

Result<SshOptions> NodeFlags::ssh() const {
  SshOptions options{.identity_file = ssh_identity_file_.value_or(""),
                     .accepts_new_hosts = ssh_accept_new_hosts_};
  if (ssh_port_) {
    FARANDOLE_TRY_ASSIGN(options.port, whole_number("--ssh-port", *ssh_port_, 1, kPortMax));
  }
  return options;
}

}  // namespace farandole
