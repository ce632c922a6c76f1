// Finds the job if another launcher than `farandole run` (torchrun, mpirun, srun …) has started
// this process. Only reads environment variables and, for MPICH, asks which process holds the other
// end of the launcher's socket.
#pragma once

#include <optional>
#include <string>

#include "base/knobs.h"
#include "farandole/engine.h"
#include "farandole/status.h"

namespace farandole {

// In this variable, torchrun puts the id of a job. `farandole run` also sets torchrun's variables,
// for other libraries, but sets this variable to kOwnTorchrunJob. So we do not mistake the ranks of
// `farandole run` for ranks of torchrun.
inline constexpr const char* kTorchrunJobVariable = "TORCHELASTIC_RUN_ID";
inline constexpr const char* kOwnTorchrunJob = "started-by-farandole-run";

struct ForeignJob {
  RankTopology topology;
  // The same text on all ranks of the job. If the job is on one host, no other job has this text.
  std::string rendezvous_id;
  bool is_on_several_hosts = false;
  // If there are several hosts: "host:port", where rank 0 serves the Store of the job. Empty if the
  // launcher's variables do not contain it.
  std::string job_store;
};

// Whether srun has set the variables of PMI beside its own, as it does with some values of its
// option --mpi. If so, MPICH's mpiexec has not started this process.
bool has_pmi_of_srun(const Environment& environment);

// The name of Knobs::secret_file in the environment.
inline constexpr const char* kSecretFileVariable = "FARANDOLE_SECRET";

// Returns the job, or empty if no other launcher has started this process. `environment` answers
// like getenv; an empty value counts as not set. If the launcher does not say on how many hosts the
// ranks are, a value of FARANDOLE_SECRET means that there are several. Errors: kFixCall if the
// numbers make no sense, if no variable distinguishes the job from other jobs, or if the job is on
// several hosts and has no FARANDOLE_SECRET.
Result<std::optional<ForeignJob>> find_foreign_job(const Environment& environment);

}  // namespace farandole
