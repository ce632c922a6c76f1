// Cluster variables: environment variables in which clouds and operators of TensorFlow jobs
// describe a job as JSON, with the hosts of all its processes. The functions are pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/knobs.h"
#include "farandole/status.h"

namespace farandole {

// ClusterTask::scheduler of a task that TF_CONFIG describes. Many schedulers set this variable, so
// the name of the scheduler is unknown.
inline constexpr std::string_view kTfConfig = "TF_CONFIG";

struct ClusterTask {
  std::string_view scheduler;  // "SageMaker"
  int node = 0;                // the number of this process in the job, from 0
  int nodes = 1;
  std::string first_host{};  // the host of process 0, without a port
};

// Reads SM_HOSTS and SM_CURRENT_HOST of SageMaker, CLUSTER_SPEC of Vertex AI, or TF_CONFIG. In
// CLUSTER_SPEC and TF_CONFIG, the processes are numbered in the order of their types: a chief (or
// master, or workerpool0) first, then the workers (or further pools). Parameter servers and
// evaluators do not count. Empty if no variable is set, or if this process is a parameter server or
// an evaluator. Errors: kFixCall if a variable has an invalid value.
Result<std::optional<ClusterTask>> find_cluster_task(const Environment& environment);

}  // namespace farandole
