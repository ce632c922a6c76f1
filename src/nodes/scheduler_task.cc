#include "nodes/scheduler_task.h"

#include <array>
#include <cstdint>

#include "base/format.h"
#include "base/host_and_port.h"
#include "base/try.h"
#include "environment/cluster_variables.h"
#include "environment/endpoint_variables.h"
#include "environment/foreign_launcher.h"

namespace farandole {
namespace {

// The name of a scheduler or launcher, and the names of the variables that it sets. The name of a
// variable that it does not set is empty.
struct SchedulerVariables {
  std::string_view scheduler;
  const char* node;
  const char* nodes;
  const char* nodes_on_host = "";  // such as "1", or "1(x2)" in Slurm
  EndpointVariables endpoint{};    // the variables with node 0's endpoint
};

// A row matches if the variable that it names as `node` is set. If the row also names a variable as
// `nodes`, this variable must be set, too. The first row that matches is used. The row of srun
// comes late, because srun may start other launchers of this table.
constexpr std::array<SchedulerVariables, 9> kSchedulers{{
    {.scheduler = "Kubeflow Trainer",
     .node = "PET_NODE_RANK",
     .nodes = "PET_NNODES",
     .endpoint = {.host = "PET_MASTER_ADDR", .port = "PET_MASTER_PORT"}},
    {.scheduler = "Open MPI's mpirun",
     .node = "OMPI_COMM_WORLD_RANK",
     .nodes = "OMPI_COMM_WORLD_SIZE",
     .nodes_on_host = "OMPI_COMM_WORLD_LOCAL_SIZE",
     .endpoint = kEndpointOfAzure},
    {.scheduler = "MPICH's mpiexec",
     .node = "PMI_RANK",
     .nodes = "PMI_SIZE",
     .nodes_on_host = "MPI_LOCALNRANKS"},
    {.scheduler = "jsrun", .node = "JSM_NAMESPACE_RANK", .nodes = "JSM_NAMESPACE_SIZE"},
    {.scheduler = "PALS", .node = "PALS_RANKID", .nodes = ""},
    {.scheduler = "Flux", .node = "FLUX_TASK_RANK", .nodes = "FLUX_JOB_SIZE"},
    {.scheduler = "srun",
     .node = "SLURM_NODEID",  // counts in the order of the node list, unlike SLURM_PROCID
     .nodes = "SLURM_STEP_NUM_TASKS",
     .nodes_on_host = "SLURM_STEP_TASKS_PER_NODE",
     .endpoint = kEndpointOfSlurm},
    {.scheduler = "a job of Kubernetes", .node = "JOB_COMPLETION_INDEX", .nodes = ""},
    {.scheduler = "Volcano", .node = "VC_TASK_INDEX", .nodes = ""},
}};

// Some clouds describe a job in JSON. The hosts of such a job run no other job, so a fixed port can
// be used.
Result<std::optional<SchedulerTask>> find_task_in_cluster(const Environment& environment) {
  FARANDOLE_TRY_ASSIGN(const auto cluster_task, find_cluster_task(environment));
  if (!cluster_task) return std::optional<SchedulerTask>();
  return std::optional(
      SchedulerTask{.scheduler = cluster_task->scheduler,
                    .node = cluster_task->node,
                    .nodes = cluster_task->nodes,
                    .join = host_and_port(cluster_task->first_host, kPortOnExclusiveHosts)});
}

}  // namespace

Result<std::optional<SchedulerTask>> find_scheduler_task(const Environment& environment) {
  for (const SchedulerVariables& row : kSchedulers) {
    if (variable_text(environment, row.node).empty()) continue;
    if (*row.nodes != '\0' && variable_text(environment, row.nodes).empty()) continue;
    if (row.node == std::string_view("PMI_RANK") && has_pmi_of_srun(environment)) continue;
    SchedulerTask task{.scheduler = row.scheduler};
    FARANDOLE_TRY_ASSIGN(task.node, leading_number_in(environment, row.node, row.scheduler, 0));
    FARANDOLE_TRY_ASSIGN(const int nodes,
                         leading_number_in(environment, row.nodes, row.scheduler, 0));
    if (*row.nodes != '\0') task.nodes = nodes;
    if (task.nodes && task.node >= nodes)
      return Status::fix_call(
          format_text("{}={} and {}={}: there is no such process; correct them or unset both",
                      row.node, task.node, row.nodes, nodes));
    FARANDOLE_TRY_ASSIGN(task.nodes_on_host,
                         leading_number_in(environment, row.nodes_on_host, row.scheduler, 1));
    task.join = endpoint_of(environment, row.endpoint);
    return std::optional(std::move(task));
  }
  return find_task_in_cluster(environment);
}

std::string number_of_processes_text(const SchedulerTask& task) {
  if (task.scheduler == kTfConfig)
    return format_text("{} describes a job of {} processes", task.scheduler,
                       task.nodes.value_or(0));
  return format_text("{} has started this command {} times", task.scheduler,
                     task.nodes.value_or(0));
}

Result<CompletedFlagValues> complete_node_flags(NodeFlagValues flag_values,
                                                const std::optional<SchedulerTask>& task) {
  const bool gives_nodes = flag_values.nodes.has_value();
  const bool gives_others = flag_values.join || flag_values.node || flag_values.secret;
  if (gives_nodes && *flag_values.nodes == "1" && !gives_others) return CompletedFlagValues();
  const bool gives_no_flags = !gives_nodes && !gives_others;
  if (!task || (task->nodes == 1 && gives_no_flags)) return CompletedFlagValues{flag_values, ""};
  if (gives_no_flags && !task->nodes)
    return CompletedFlagValues{
        flag_values,
        format_text("this is number {} of {}, but the job is on this host only; for one job "
                    "over all of these processes, give --join, --nodes and --secret",
                    task->node, task->scheduler)};
  if (gives_no_flags || (!flag_values.node && task->nodes_on_host > 1)) {
    const std::string beginning = number_of_processes_text(*task);
    constexpr std::string_view kSeparateJobsHint =
        "or give --nodes 1, so that each is a job of its own";
    if (task->nodes_on_host > 1)
      return Status::fix_call(
          format_text("{}, {} times on this host; start it once on each host ({}), {}", beginning,
                      task->nodes_on_host,
                      task->scheduler == "srun" ? "--ntasks-per-node=1" : "one process per host",
                      kSeparateJobsHint));
    return Status::fix_call(format_text(
        "{}; for one job over these hosts, give {}--secret FILE (see `farandole secret`), {}",
        beginning, task->join ? "" : "--join HOST:PORT and ", kSeparateJobsHint));
  }
  if (!flag_values.node) flag_values.node = std::to_string(task->node);
  if (!flag_values.nodes && task->nodes) flag_values.nodes = std::to_string(*task->nodes);
  if (!flag_values.join) flag_values.join = task->join;
  return CompletedFlagValues{flag_values, ""};
}

}  // namespace farandole
