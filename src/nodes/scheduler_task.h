// SchedulerTask: what a scheduler or launcher, such as Slurm or mpirun, says in the environment
// about this process. If the scheduler has started `farandole run` once on each host, this
// determines the flags of a job over several nodes. All functions are pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/knobs.h"
#include "farandole/status.h"
#include "nodes/node_options.h"

namespace farandole {

struct SchedulerTask {
  std::string_view scheduler;         // "srun"
  int node = 0;                       // the number of this process
  std::optional<int> nodes{};         // the number of processes; empty if it is not known
  int nodes_on_host = 1;              // the number of these processes on this host
  std::optional<std::string> join{};  // the endpoint of node 0, if it is known
};

// Returns the task, or empty if no known scheduler has started this process. `environment` works
// like getenv. An empty value counts as not set. Errors: kFixCall if the values make no sense.
Result<std::optional<SchedulerTask>> find_scheduler_task(const Environment& environment);

// Returns the words with which an error text begins: they say how many processes the scheduler's
// job has. Call it only if this number is known.
std::string number_of_processes_text(const SchedulerTask& task);

struct CompletedFlagValues {
  NodeFlagValues flag_values;
  std::string notice;  // for the user; usually empty
};

// Adds the values that the scheduler knows to those that the user has given. `--nodes 1` alone
// means a job on this host only. Errors: kFixCall if the scheduler has started several processes
// and the user has given no flags, because each process would then become a separate job.
Result<CompletedFlagValues> complete_node_flags(NodeFlagValues flag_values,
                                                const std::optional<SchedulerTask>& task);

}  // namespace farandole
