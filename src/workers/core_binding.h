// Core binding: which cores each worker of a host may use, and how many threads it should have.
// All functions are pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "farandole/status.h"
#include "workers/core_topology.h"

namespace farandole {

enum class BindTo : std::uint8_t {
  kNone,    // every worker may use all cores that the launcher may use
  kCore,    // each worker may use an equal part of these cores
  kSocket,  // each worker may use all of these cores that are on one socket
};

// Errors: kFixCall if the word is not core, socket or none.
Result<BindTo> parse_bind_to(const std::string& word);

struct WorkerCores {
  std::vector<int> hardware_threads;  // of the worker's cores; empty: the worker is not bound
  // The number of cores that the worker may use, or its share of these cores if other workers use
  // them, too. It is at most the worker's share of the quota, and at least 1.
  int threads = 1;
};

struct CoreDivision {
  BindTo bind_to = BindTo::kNone;
  int cores = 1;                     // how many cores all workers together may use
  std::vector<WorkerCores> workers;  // by local rank
};

// Divides the cores between `workers` workers of this host. The cores must be in the order of
// find_cores(). `quota` is core_quota(). Workers with successive ranks get neighbouring cores.
//
// kCore: all parts have the same size, each part lies within one socket, and the parts are as large
// as possible under these rules. If there are fewer workers than sockets, a part is an equal number
// of whole sockets. If there are more workers than cores, each worker gets one core, and the number
// of workers per core differs by at most 1. kSocket: each socket gets workers in proportion to its
// number of cores.
CoreDivision divide_cores(const std::vector<Core>& cores, std::optional<int> quota, int workers,
                          BindTo bind_to);

// Returns a text such as "2 on 8 cores, each bound to cores of its own".
std::string describe(const CoreDivision& division);
// Returns a text with the numbers of sockets, cores and hardware threads, and with the hardware
// threads that kCore would give to two workers. It helps users who have not started a job yet.
std::string binding_preview(const std::vector<Core>& cores);
// Returns the smallest and the largest number of threads, such as "4" or "1 to 2".
std::string threads_text(const CoreDivision& division);

}  // namespace farandole
