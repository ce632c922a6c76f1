#include "bench_plan.h"

#include <array>
#include <nlohmann/json.hpp>

#include "base/format.h"

namespace farandole {

std::size_t BenchPlan::bytes_for(std::size_t size) const {
  const bool is_divided = operation != Operation::kAllreduce && operation != Operation::kBroadcast;
  const std::size_t unit = row_of(dtype).bytes * (is_divided ? static_cast<std::size_t>(ranks) : 1);
  return (size + unit - 1) / unit * unit;
}

double bus_factor(Operation operation, int ranks) {
  const double share_of_others = static_cast<double>(ranks - 1) / ranks;
  if (operation == Operation::kAllreduce) return 2 * share_of_others;
  return operation == Operation::kBroadcast ? 1 : share_of_others;
}

std::string size_text(std::size_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"B", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  while (unit + 1 < kUnits.size() && bytes >= 1024 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return format_text("{} {}", bytes, kUnits[unit]);
}

std::string bench_title(const BenchPlan& plan) {
  return format_text("{} of {} on {} rank{}, in {} memory{}", row_of(plan.operation).name,
                     row_of(plan.dtype).name, plan.ranks, plan.ranks == 1 ? "" : "s",
                     plan.uses_heap ? "heap" : "ordinary",
                     plan.reads_results ? ", results read" : "");
}

std::string bench_heading() {
  return format_text("{:>10}{:>12}{:>12}{:>14}{:>14}  verified", "size", "p50 us", "p99 us",
                     "algbw GB/s", "busbw GB/s");
}

std::string bench_line(const BenchPlan& plan, const BenchRow& row) {
  return format_text("{:>10}{:>12.2f}{:>12.2f}{:>14.3f}{:>14.3f}  {}", size_text(row.bytes),
                     row.p50_us, row.p99_us, row.algbw_gbps(),
                     row.algbw_gbps() * bus_factor(plan.operation, plan.ranks),
                     row.is_verified ? "yes" : "NO");
}

std::string bench_json(const BenchPlan& plan, const std::vector<BenchRow>& rows) {
  auto list = nlohmann::ordered_json::array();
  for (const BenchRow& row : rows)
    list.push_back({{"operation", row_of(plan.operation).name},
                    {"bytes", row.bytes},
                    {"ranks", plan.ranks},
                    {"dtype", row_of(plan.dtype).name},
                    {"memory", plan.uses_heap ? "heap" : "ordinary"},
                    {"consume", plan.reads_results},
                    {"p50_us", row.p50_us},
                    {"p99_us", row.p99_us},
                    {"algbw_gbps", row.algbw_gbps()},
                    {"busbw_gbps", row.algbw_gbps() * bus_factor(plan.operation, plan.ranks)},
                    {"verified", row.is_verified}});
  return list.dump(2) + "\n";
}

}  // namespace farandole
