// The environment variables of workers: their rank, the job's size, and their number of threads.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nodes/node_layout.h"

namespace farandole {

// The variable with the number of threads of OpenMP and of libraries that follow it.
inline constexpr const char* kThreadsVariable = "OMP_NUM_THREADS";

using EnvironmentVariable = std::pair<std::string, std::string>;

// The numbers of the descriptors that a worker inherits in addition to the standard ones.
struct WorkerDescriptors {
  int rendezvous = -1;
  int flight_record = -1;  // the memory of the worker's flight record
  int channel = -1;        // connects to the program that started the job; −1: none
  int launcher = -1;       // tells a worker of an elastic job that its launcher is lost
  int secret = -1;         // the job's secret; −1: the job is on one host
};

// Where the ranks of a job find the job's Store, and where torch.distributed may put its own store.
struct RendezvousAddresses {
  std::string job_store{};  // empty: the job is on one host
  std::string master_address = "127.0.0.1";
  int master_port = 0;  // the port that this job has reserved; 0: none
};

// The variables with a worker's ranks, sizes and descriptors. They override inherited variables.
std::vector<EnvironmentVariable> rank_variables(const NodeLayout& layout, int local_rank,
                                                const WorkerDescriptors& descriptors,
                                                const RendezvousAddresses& addresses);

// The variables that torchrun would set for a worker, because many libraries look for them. They
// override inherited variables.
std::vector<EnvironmentVariable> torchrun_variables(const NodeLayout& layout, int local_rank,
                                                    const RendezvousAddresses& addresses);

// The variables that a worker gets unless the user has set them. `threads` is the number of threads
// that its libraries should use: WorkerCores::threads.
std::vector<EnvironmentVariable> default_variables(int threads);

// The variable that makes the C library keep up to `kept_bytes` of freed memory for new tensors, in
// huge pages. By default, the C library immediately returns large freed blocks to the system. Every
// training step then gets new pages, which the kernel fills with zeros. Empty in three cases:
// `given_variables` has settings for the C library's memory (GLIBC_TUNABLES, MALLOC_…);
// `kept_bytes` is below what the C library keeps by default; or the C library is older than 2.35
// and would ignore such a large threshold.
std::optional<EnvironmentVariable> kept_memory_variable(
    std::size_t kept_bytes, const std::vector<EnvironmentVariable>& given_variables);

// Whether a text can be the name of a variable: it has only letters, digits and _, and does not
// begin with a digit.
bool is_variable_name(std::string_view name);

// Returns "NAME=value" lines for execve. A later list overrides the earlier ones.
std::vector<std::string> merge_environment(
    const std::vector<std::vector<EnvironmentVariable>>& lists);
// The environment of this process, without the variables TORCHELASTIC_… of a torchrun that has
// started it.
std::vector<EnvironmentVariable> inherited_environment();

}  // namespace farandole
