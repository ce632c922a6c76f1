#include "base/foreign_launcher.h"

#include <sys/socket.h>

#include <array>
#include <charconv>
#include <string_view>

#include "base/format.h"
#include "base/try.h"

namespace farandole {
namespace {

// The environment variables that a launcher sets.
struct Launcher {
  std::string_view name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  // Variables that differ between the jobs of a user. The rendezvous id contains those that are
  // set.
  std::array<const char*, 4> job;
  // The variable with the descriptor of a socket to the launcher's process on this host. Such a
  // process starts one job only.
  const char* socket = nullptr;
  // Whether `farandole run` also sets this launcher's variables, for other libraries. Then the
  // environment variable kTorchrunJobVariable has the value kOwnTorchrunJob.
  bool is_imitated = false;
};

// The first launcher whose rank and size variables are set is taken. srun may start torchrun, but
// torchrun hardly ever starts srun, so torchrun comes first.
constexpr std::array<Launcher, 4> kLaunchers = {{
    {.name = "torchrun",
     .rank = "RANK",
     .size = "WORLD_SIZE",
     .local_rank = "LOCAL_RANK",
     .local_size = "LOCAL_WORLD_SIZE",
     .job = {"MASTER_ADDR", "MASTER_PORT", kTorchrunJobVariable, "TORCHELASTIC_RESTART_COUNT"},
     .is_imitated = true},
    {.name = "Open MPI's mpirun",
     .rank = "OMPI_COMM_WORLD_RANK",
     .size = "OMPI_COMM_WORLD_SIZE",
     .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
     .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
     .job = {"PMIX_NAMESPACE", "PMIX_SERVER_TMPDIR", "OMPI_MCA_ess_base_jobid", ""}},
    {.name = "MPICH's mpiexec",
     .rank = "PMI_RANK",
     .size = "PMI_SIZE",
     .local_rank = "MPI_LOCALRANKID",
     .local_size = "MPI_LOCALNRANKS",
     .job = {"PMI_PORT", "PMI_JOBID", "", ""},
     .socket = "PMI_FD"},
    {.name = "srun",
     .rank = "SLURM_PROCID",
     .size = "SLURM_STEP_NUM_TASKS",
     .local_rank = "SLURM_LOCALID",
     .local_size = "SLURM_STEP_TASKS_PER_NODE",
     .job = {"SLURM_JOB_ID", "SLURM_STEP_ID", "", ""}},
}};

bool has_started_this_process(const Environment& environment, const Launcher& launcher) {
  if (variable_text(environment, launcher.rank).empty() ||
      variable_text(environment, launcher.size).empty())
    return false;
  return !launcher.is_imitated ||
         variable_text(environment, kTorchrunJobVariable) != kOwnTorchrunJob;
}

// Slurm writes "2(x3)" for two ranks on each of three hosts.
std::optional<int> leading_number(std::string_view text) {
  int number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_whole_number = rest == text.data() + text.size() || *rest == '(' || *rest == ',';
  if (error != std::errc() || number < 0 || !is_whole_number) return std::nullopt;
  return number;
}

Result<int> number_of(const Environment& environment, const Launcher& launcher, const char* name,
                      int default_number) {
  const std::string_view text = variable_text(environment, name);
  if (text.empty()) return default_number;
  if (const auto number = leading_number(text)) return *number;
  return Status::fix_call(
      format_text("{} is \"{}\", which is not what {} sets. Correct it or unset it.", name, text,
                  launcher.name));
}

Result<RankTopology> topology_of(const Environment& environment, const Launcher& launcher) {
  RankTopology topology;
  FARANDOLE_TRY_ASSIGN(topology.rank, number_of(environment, launcher, launcher.rank, 0));
  FARANDOLE_TRY_ASSIGN(topology.size, number_of(environment, launcher, launcher.size, 1));
  FARANDOLE_TRY_ASSIGN(topology.local_rank,
                       number_of(environment, launcher, launcher.local_rank, topology.rank));
  FARANDOLE_TRY_ASSIGN(topology.local_size,
                       number_of(environment, launcher, launcher.local_size, topology.size));
  if (topology.size < 1 || topology.rank >= topology.size)
    return Status::fix_call(format_text(
        "{}={} and {}={}: there is no such rank. Start all ranks with {}, or unset both "
        "to run alone.",
        launcher.rank, topology.rank, launcher.size, topology.size, launcher.name));
  if (topology.local_size != topology.size || topology.local_rank != topology.rank)
    return Status::fix_call(format_text(
        "{} has started rank {} of {} as number {} of {} on this host: only `farandole run --join` "
        "starts jobs over several hosts so far; use it, or start all ranks on one host",
        launcher.name, topology.rank, topology.size, topology.local_rank, topology.local_size));
  return topology;
}

// Empty if the descriptor is not a Unix socket.
std::string peer_process(std::string_view descriptor) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  const auto number = leading_number(descriptor);
  if (!number || ::getsockopt(*number, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return {};
  return format_text("\nprocess={}", peer.pid);
}

Result<std::string> rendezvous_id_of(const Environment& environment, const Launcher& launcher) {
  std::string found_variables;
  std::string looked_for;
  for (const char* const name : launcher.job) {
    if (*name == '\0') continue;
    looked_for += format_text("{}{}", looked_for.empty() ? "" : ", ", name);
    const std::string_view text = variable_text(environment, name);
    if (!text.empty()) found_variables += format_text("\n{}={}", name, text);
  }
  if (launcher.socket != nullptr) {
    looked_for += format_text(", {}", launcher.socket);
    found_variables += peer_process(variable_text(environment, launcher.socket));
  }
  if (!found_variables.empty()) return format_text("{}{}", launcher.name, found_variables);
  return Status::fix_call(format_text(
      "{} and {} are set, as by {}, but no variable that distinguishes this job from other jobs "
      "(one of {}): start the job with `farandole run`, or unset both to run alone",
      launcher.rank, launcher.size, launcher.name, looked_for));
}

}  // namespace

Result<std::optional<ForeignJob>> find_foreign_job(const Environment& environment) {
  for (const Launcher& launcher : kLaunchers) {
    if (!has_started_this_process(environment, launcher)) continue;
    ForeignJob job;
    FARANDOLE_TRY_ASSIGN(job.topology, topology_of(environment, launcher));
    if (job.topology.size > 1) {
      FARANDOLE_TRY_ASSIGN(job.rendezvous_id, rendezvous_id_of(environment, launcher));
    }
    return std::optional(std::move(job));
  }
  return std::optional<ForeignJob>();
}

}  // namespace farandole
