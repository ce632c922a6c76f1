// Workloads: typical training programs, with the sizes and times of real training. They show how
// useful each heuristic of the predictor is. `./dev sim --workloads` prints the costs of each
// workload, and tools/ablations.py prints their costs without one of the heuristics
// (docs/simulator.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "script.h"

namespace farandole::sim {

// A workload's name, and what its program does.
struct Workload {
  std::string_view name;
  std::string_view program;
};
std::vector<Workload> all_workloads();

// The sums over the seeds 1 … `seeds`, which decide orders and times. The random loops run fifty
// times as many seeds.
struct WorkloadCost {
  std::uint64_t messages = 0;
  std::uint64_t replans = 0;
  std::uint64_t steps = 0;
  Time time = 0;                           // until the last program has ended
  std::vector<std::string> problems = {};  // the rules that were broken
};
// `number` is an index of all_workloads().
WorkloadCost measure_workload(std::size_t number, std::uint64_t seeds);

// Returns the costs of all workloads as a table in Markdown, then a line for each broken rule.
std::string workload_report(std::uint64_t seeds);

}  // namespace farandole::sim
