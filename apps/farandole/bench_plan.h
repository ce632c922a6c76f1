// What `farandole bench` measures, and its results.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "farandole/dtype.h"
#include "farandole/operation.h"

namespace farandole {

struct BenchPlan {
  Operation operation = Operation::kAllreduce;
  int ranks = 1;
  std::vector<std::size_t> sizes;  // as the user gave them, see bytes_for()
  DType dtype = DType::kFloat32;
  bool heap = true;      // memory from Engine::allocate(), otherwise ordinary memory
  bool consume = false;  // rotating buffers; the result is read inside the timed region
  std::string json;      // file; empty: none

  // The size as nccl-tests define it, rounded up to whole elements for every rank: that of the
  // tensor of an allreduce or broadcast, of the input of a reduce-scatter or alltoall, of the
  // output of an all-gather.
  std::size_t bytes_for(std::size_t size) const;
};

struct BenchRow {
  std::size_t bytes = 0;
  double p50_us = 0;  // of the slowest rank of each repetition
  double p99_us = 0;
  bool verified = false;

  double algbw_gbps() const { return static_cast<double>(bytes) / p50_us / 1e3; }
};

// busbw ÷ algbw as in nccl-tests (its doc/PERFORMANCE.md): converts to the bandwidth that a link
// needs with the best algorithm, which does not depend on the number of ranks.
double bus_factor(Operation operation, int ranks);

// The table on a terminal, line by line.
std::string bench_title(const BenchPlan& plan);
std::string bench_heading();
std::string bench_line(const BenchPlan& plan, const BenchRow& row);
std::string bench_json(const BenchPlan& plan, const std::vector<BenchRow>& rows);
// Such as "64 MiB".
std::string size_text(std::size_t bytes);

}  // namespace farandole
