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

// `farandole run` also sets torchrun's variables, for other libraries. It sets this variable, in
// which torchrun puts the id of a job, to kOwnTorchrunJob. So the ranks of `farandole run` are not
// mistaken for ranks of torchrun.
inline constexpr const char* kTorchrunJobVariable = "TORCHELASTIC_RUN_ID";
inline constexpr const char* kOwnTorchrunJob = "started-by-farandole-run";

struct ForeignJob {
  RankTopology topology;
  // the same text on all ranks of the job, and different from every other job's
  std::string rendezvous_id;
};

// Returns the job, or empty if no other launcher has started this process. `environment` answers
// like getenv; an empty value counts as not set. Errors: kFixCall if the numbers make no sense, if
// the job spans several hosts, or if no variable distinguishes it from other jobs.
Result<std::optional<ForeignJob>> find_foreign_job(const Environment& environment);

}  // namespace farandole
