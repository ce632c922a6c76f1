// The engine of the job that this process has joined, for glue that frameworks call in their own
// threads, without the GIL. farandole/lifecycle.py decides which engine that is.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "farandole/engine.h"

namespace farandole::python {

struct CurrentEngine {
  std::shared_ptr<Engine> engine;  // null if this process is not in a job
  // How many jobs this process has joined. The number shows whether a compiled program is from an
  // earlier job: such a program contains the group numbers of that job.
  std::int64_t job_number = 0;
  // The number of the earliest job for which this holds: all jobs from that job to this job have
  // the same groups. In these jobs, the groups have the same numbers.
  std::int64_t first_job_with_same_groups = 0;
};

// Any thread may call these functions.
CurrentEngine current_engine();
void set_current_engine(std::shared_ptr<Engine> engine, std::vector<std::vector<int>> given_groups);
void clear_current_engine();
// Records that a compiled program of JAX is valid in a job. `program` is the program's number,
// which all its calls contain. If several jobs are recorded for one number, the latest job counts.
void set_job_of_program(std::int64_t program, std::int64_t job);
// Returns the job that was recorded for this program; 0 if there is none.
std::int64_t job_of_program(std::int64_t program);

}  // namespace farandole::python
