#include "environment/foreign_launcher.h"

#include <sys/socket.h>

#include <array>
#include <string_view>

#include "base/digest.h"
#include "base/format.h"
#include "base/try.h"
#include "environment/endpoint_variables.h"

namespace farandole {
namespace {

// The environment variables that a launcher sets. A name is empty if the launcher has no such
// variable.
struct Launcher {
  std::string_view name;
  const char* rank_variable;
  const char* size_variable;
  const char* local_rank_variable;
  const char* local_size_variable;
  // Variables that differ between the jobs of a user, and are the same on all ranks. The rendezvous
  // id contains those that are set.
  std::array<const char*, 4> job_variables;
  const char* host_job_variable = "";  // differs between jobs; may differ between hosts, too
  // The variable with the descriptor of a socket to the launcher's process on this host. Such a
  // process of the launcher starts one job only.
  const char* socket_variable = nullptr;
  const char* host_count_variable = "";
  EndpointVariables endpoint{};  // where rank 0 can be reached
  // Whether `farandole run` also sets this launcher's variables, for other libraries. Then the
  // environment variable kTorchrunJobVariable has the value kOwnTorchrunJob.
  bool is_imitated = false;
};

constexpr const char* kPmiRank = "PMI_RANK";

// The first launcher in this table whose rank variable and size variable are set is the launcher of
// this process. srun may start the other launchers, but they hardly ever start srun, so srun comes
// last.
constexpr std::array<Launcher, 6> kLaunchers = {{
    {.name = "torchrun",
     .rank_variable = "RANK",
     .size_variable = "WORLD_SIZE",
     .local_rank_variable = "LOCAL_RANK",
     .local_size_variable = "LOCAL_WORLD_SIZE",
     .job_variables = {"MASTER_ADDR", "MASTER_PORT", kTorchrunJobVariable,
                       "TORCHELASTIC_RESTART_COUNT"},
     // torch.distributed itself listens at MASTER_PORT, so we compute another port.
     .endpoint = {.host = "MASTER_ADDR",
                  .job = "MASTER_PORT",
                  .part = "TORCHELASTIC_RESTART_COUNT"},
     .is_imitated = true},
    {.name = "Open MPI's mpirun",
     .rank_variable = "OMPI_COMM_WORLD_RANK",
     .size_variable = "OMPI_COMM_WORLD_SIZE",
     .local_rank_variable = "OMPI_COMM_WORLD_LOCAL_RANK",
     .local_size_variable = "OMPI_COMM_WORLD_LOCAL_SIZE",
     .job_variables = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "", ""},
     .host_job_variable = "PMIX_SERVER_TMPDIR",
     .endpoint = kEndpointOfAzure},
    {.name = "MPICH's mpiexec",
     .rank_variable = kPmiRank,
     .size_variable = "PMI_SIZE",
     .local_rank_variable = "MPI_LOCALRANKID",
     .local_size_variable = "MPI_LOCALNRANKS",
     .job_variables = {"PMI_JOBID", "", "", ""},
     .host_job_variable = "PMI_PORT",
     .socket_variable = "PMI_FD"},
    {.name = "jsrun",
     .rank_variable = "JSM_NAMESPACE_RANK",
     .size_variable = "JSM_NAMESPACE_SIZE",
     .local_rank_variable = "JSM_NAMESPACE_LOCAL_RANK",
     .local_size_variable = "JSM_NAMESPACE_LOCAL_SIZE",
     .job_variables = {"LSB_JOBID", "", "", ""}},
    {.name = "Flux",
     .rank_variable = "FLUX_TASK_RANK",
     .size_variable = "FLUX_JOB_SIZE",
     .local_rank_variable = "FLUX_TASK_LOCAL_ID",
     .local_size_variable = "",
     .job_variables = {"FLUX_JOB_ID", "", "", ""},
     .host_count_variable = "FLUX_JOB_NNODES"},
    {.name = "srun",
     .rank_variable = "SLURM_PROCID",
     .size_variable = "SLURM_STEP_NUM_TASKS",
     .local_rank_variable = "SLURM_LOCALID",
     .local_size_variable = "SLURM_STEP_TASKS_PER_NODE",
     .job_variables = {"SLURM_JOB_ID", "SLURM_STEP_ID", "", ""},
     .host_count_variable = "SLURM_STEP_NUM_NODES",
     .endpoint = kEndpointOfSlurm},
}};

bool has_started_this_process(const Environment& environment, const Launcher& launcher) {
  if (variable_text(environment, launcher.rank_variable).empty() ||
      variable_text(environment, launcher.size_variable).empty())
    return false;
  if (launcher.rank_variable == kPmiRank && has_pmi_of_srun(environment)) return false;
  return !launcher.is_imitated ||
         variable_text(environment, kTorchrunJobVariable) != kOwnTorchrunJob;
}

// Returns −1 if the variable is not set.
Result<int> number_in_variable(const Environment& environment, const Launcher& launcher,
                               const char* name) {
  return leading_number_in(environment, name, launcher.name, -1);
}

Result<RankTopology> topology_of(const Environment& environment, const Launcher& launcher) {
  RankTopology topology;
  FARANDOLE_TRY_ASSIGN(topology.rank,
                       number_in_variable(environment, launcher, launcher.rank_variable));
  FARANDOLE_TRY_ASSIGN(topology.size,
                       number_in_variable(environment, launcher, launcher.size_variable));
  FARANDOLE_TRY_ASSIGN(topology.local_rank,
                       number_in_variable(environment, launcher, launcher.local_rank_variable));
  FARANDOLE_TRY_ASSIGN(topology.local_size,
                       number_in_variable(environment, launcher, launcher.local_size_variable));
  if (topology.size >= 1 && topology.rank < topology.size) return topology;
  return Status::fix_call(format_text(
      "{}={} and {}={}: there is no such rank. Start all ranks with {}, or unset both "
      "to run alone.",
      launcher.rank_variable, topology.rank, launcher.size_variable, topology.size, launcher.name));
}

bool has_secret(const Environment& environment) {
  return !variable_text(environment, kSecretFileVariable).empty();
}

Result<bool> is_on_several_hosts(const Environment& environment, const Launcher& launcher,
                                 const RankTopology& topology) {
  FARANDOLE_TRY_ASSIGN(const int hosts,
                       number_in_variable(environment, launcher, launcher.host_count_variable));
  const bool has_local_size = topology.local_size >= 0;
  const bool others_are_elsewhere = has_local_size && topology.local_size != topology.size;
  if (hosts >= 0 && has_local_size && others_are_elsewhere != (hosts > 1)) {
    return Status::fix_call(format_text(
        "{} says that the {} ranks are on {} host{}, but {} says that {} of them are on one host; "
        "correct one of the variables, or unset both",
        launcher.host_count_variable, topology.size, hosts, hosts == 1 ? "" : "s",
        launcher.local_size_variable, topology.local_size));
  }
  if (hosts >= 0) return hosts > 1;
  if (has_local_size) return others_are_elsewhere;
  if (topology.local_rank >= 0 && topology.local_rank != topology.rank) return true;
  return has_secret(environment) || !variable_text(environment, "FARANDOLE_JOB_STORE").empty();
}

// On one host, the local rank and size are the global ones. In a list such as "2(x3),1", the first
// number says nothing about this host.
void correct_local_numbers(const Environment& environment, const Launcher& launcher,
                           ForeignJob& job) {
  RankTopology& topology = job.topology;
  if (!job.is_on_several_hosts) {
    topology.local_rank = topology.rank;
    topology.local_size = topology.size;
  } else if (variable_text(environment, launcher.local_size_variable).find_first_of("(,") !=
             std::string_view::npos) {
    topology.local_size = -1;
  }
}

Status check_secret(const Environment& environment, const Launcher& launcher,
                    const ForeignJob& job) {
  if (has_secret(environment)) return {};
  return Status::fix_call(format_text(
      "{} has started rank {} of {}, and not all ranks are on this host. Over several hosts, the "
      "ranks need a secret: make a file with `farandole secret FILE`, which all hosts can read, "
      "and set {}=FILE for all ranks; or start all ranks on one host",
      launcher.name, job.topology.rank, job.topology.size, kSecretFileVariable));
}

// Returns a line with the pid of the process at the other end of the socket. Empty if the
// descriptor is not a Unix socket.
std::string peer_process_line(std::string_view descriptor) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  const auto number = leading_number(descriptor);
  if (!number ||
      ::getsockopt(static_cast<int>(*number), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
    return {};
  return format_text("\nprocess={}", peer.pid);
}

// The launchers of the hosts are started one by one, so a rank that was left over from an earlier
// start could join the ranks of this start, and the data of both starts would be mixed.
Status check_run_id(const Environment& environment, const Launcher& launcher) {
  if (!launcher.is_imitated) return {};
  const std::string_view id = variable_text(environment, kTorchrunJobVariable);
  if (!id.empty() && id != "none") return {};
  return Status::fix_call(format_text(
      "the ranks of this job are on several hosts, so they need an id by which they differ from "
      "ranks of an earlier start: give torchrun `--rdzv-id ID` on each host, with a new ID for "
      "each start; if you start the ranks by hand, set {}=ID",
      kTorchrunJobVariable));
}

struct JobVariables {
  std::string lines_of_set;  // a line for each variable that is set
  std::string all_names;     // the names of all variables that may be set
};

JobVariables find_job_variables(const Environment& environment, const Launcher& launcher,
                                bool is_on_several_hosts) {
  JobVariables variables;
  const auto add = [&](const char* name) {
    if (*name == '\0') return;
    variables.all_names.append(variables.all_names.empty() ? "" : ", ").append(name);
    const std::string_view text = variable_text(environment, name);
    if (!text.empty()) variables.lines_of_set.append(format_text("\n{}={}", name, text));
  };
  for (const char* const name : launcher.job_variables) add(name);
  if (is_on_several_hosts) return variables;
  add(launcher.host_job_variable);
  if (launcher.socket_variable != nullptr) {
    variables.all_names.append(", ").append(launcher.socket_variable);
    variables.lines_of_set.append(
        peer_process_line(variable_text(environment, launcher.socket_variable)));
  }
  return variables;
}

// Over several hosts, the secret and the place of the Store also distinguish jobs.
Result<std::string> rendezvous_id_of(const Environment& environment, const Launcher& launcher,
                                     bool is_on_several_hosts) {
  const auto variables = find_job_variables(environment, launcher, is_on_several_hosts);
  std::string id = format_text("{}{}", launcher.name, variables.lines_of_set);
  if (is_on_several_hosts) {
    Digest digest;
    digest.add(id);
    return format_text("{:016x}", digest.value());  // a short id: keys of the Store begin with it
  }
  if (!variables.lines_of_set.empty()) return id;
  return Status::fix_call(format_text(
      "{} and {} are set, as by {}, but no variable that distinguishes this job from other jobs "
      "(one of {}): start the job with `farandole run`, or unset both to run alone",
      launcher.rank_variable, launcher.size_variable, launcher.name, variables.all_names));
}

}  // namespace

bool has_pmi_of_srun(const Environment& environment) {
  const auto is_same = [&](const char* name, const char* of_slurm) {
    return variable_text(environment, name) == variable_text(environment, of_slurm);
  };
  return is_same(kPmiRank, "SLURM_PROCID") && is_same("PMI_SIZE", "SLURM_STEP_NUM_TASKS");
}

Result<std::optional<ForeignJob>> find_foreign_job(const Environment& environment) {
  for (const Launcher& launcher : kLaunchers) {
    if (!has_started_this_process(environment, launcher)) continue;
    ForeignJob job;
    FARANDOLE_TRY_ASSIGN(job.topology, topology_of(environment, launcher));
    if (job.topology.size > 1) {
      FARANDOLE_TRY_ASSIGN(job.is_on_several_hosts,
                           is_on_several_hosts(environment, launcher, job.topology));
      FARANDOLE_TRY_ASSIGN(job.rendezvous_id,
                           rendezvous_id_of(environment, launcher, job.is_on_several_hosts));
    }
    if (job.is_on_several_hosts) {
      FARANDOLE_TRY(check_secret(environment, launcher, job));
      FARANDOLE_TRY(check_run_id(environment, launcher));
      job.job_store = endpoint_of(environment, launcher.endpoint).value_or("");
    }
    correct_local_numbers(environment, launcher, job);
    return std::optional(std::move(job));
  }
  return std::optional<ForeignJob>();
}

}  // namespace farandole
