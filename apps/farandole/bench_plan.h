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
  std::vector<std::size_t> sizes;  // the sizes that the user gave; bytes_for() rounds them
  DType dtype = DType::kFloat32;
  bool uses_heap = true;  // true: memory from Engine::allocate(); false: ordinary memory
  // Whether the repetitions rotate between several buffers, and read the result in the timed
  // region.
  bool reads_results = false;
  std::string json_path;  // the results are also written to this file; empty: no file

  // Rounds a size up to whole elements for every rank. As in nccl-tests, a size means the bytes of
  // the tensor for allreduce and broadcast, of the input for reduce-scatter and alltoall, and of
  // the output for all-gather.
  std::size_t bytes_for(std::size_t size) const;
};

struct BenchRow {
  std::size_t bytes = 0;
  // The median over the repetitions. The time of a repetition is the time of its slowest rank.
  double p50_us = 0;
  double p99_us = 0;
  bool is_verified = false;

  double algbw_gbps() const { return static_cast<double>(bytes) / p50_us / 1e3; }
};

// Returns busbw ÷ algbw, as nccl-tests define them in their doc/PERFORMANCE.md. busbw is the
// bandwidth that the best possible algorithm uses on each link, so it does not depend on the number
// of ranks.
double bus_factor(Operation operation, int ranks);

// The lines of the table for the terminal.
std::string bench_title(const BenchPlan& plan);
std::string bench_heading();
std::string bench_line(const BenchPlan& plan, const BenchRow& row);
std::string bench_json(const BenchPlan& plan, const std::vector<BenchRow>& rows);
// Returns a text such as "64 MiB".
std::string size_text(std::size_t bytes);

}  // namespace farandole
