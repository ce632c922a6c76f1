// Cluster variables: environment variables in which clouds and operators of TensorFlow jobs
// describe a job as JSON, with the hosts of all its processes. The functions are pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/knobs.h"
#include "farandole/status.h"

namespace farandole {

// The scheduler of a task that TF_CONFIG describes. It is not known what has set this variable.
inline constexpr std::string_view kTfConfig = "TF_CONFIG";

struct ClusterTask {
  std::string_view scheduler;  // "SageMaker"
  int node = 0;                // the number of this process
  int nodes = 1;
  std::string first_host{};  // of process 0, without a port
};

// Reads SM_HOSTS and SM_CURRENT_HOST of SageMaker, CLUSTER_SPEC of Vertex AI, or TF_CONFIG. The
// processes of the last two are numbered in the order of the types: a chief (or master, or
// workerpool0) first, then the workers (or further pools). Parameter servers and evaluators do not
// count. Empty if no variable is set, or if this process does not count. Errors: kFixCall if a
// value is not what the cloud sets.
Result<std::optional<ClusterTask>> find_cluster_task(const Environment& environment);

}  // namespace farandole
