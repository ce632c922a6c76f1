// One rank of `farandole bench`. It uses only the public interface, like any other program.
#pragma once

#include "bench_plan.h"

namespace farandole {

// Joins the job that the launcher has started, measures, and leaves. Rank 0 writes the results.
// Returns the exit code.
int run_bench_worker(const BenchPlan& plan);

}  // namespace farandole
