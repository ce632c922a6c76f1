// The engine of the job that this process has joined, for glue that frameworks call in their own
// threads, without the GIL. farandole/lifecycle.py decides which engine that is.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "farandole/engine.h"

namespace farandole::python {

struct CurrentEngine {
  std::shared_ptr<Engine> engine;  // null outside a job
  // How many jobs this process has joined. A program that was compiled in an earlier job has the
  // numbers of that job's groups.
  std::int64_t number = 0;
  // The first of these jobs from which on the groups given to init() have had the same numbers.
  std::int64_t same_groups_since = 0;
};

// Any thread may call these functions.
CurrentEngine current_engine();
void begin_current_engine(std::shared_ptr<Engine> engine,
                          std::vector<std::vector<int>> given_groups);
void end_current_engine();
// Records for which job a compiled program of JAX is valid, by the number that the program's calls
// have. Of two jobs, the later one counts.
void set_job_of_program(std::int64_t program, std::int64_t job);
// Returns 0 if no job was recorded.
std::int64_t job_of_program(std::int64_t program);

}  // namespace farandole::python
