#include "current_engine.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace farandole::python {
namespace {

std::mutex current_mutex;
CurrentEngine current;
std::vector<std::vector<int>> current_groups;
std::map<std::int64_t, std::int64_t> jobs_of_programs;

}  // namespace

CurrentEngine current_engine() {
  const std::lock_guard lock(current_mutex);
  return current;
}

void begin_current_engine(std::shared_ptr<Engine> engine,
                          std::vector<std::vector<int>> given_groups) {
  const std::lock_guard lock(current_mutex);
  const std::int64_t number = current.number + 1;
  const bool has_same_groups = given_groups == current_groups;
  current = {std::move(engine), number, has_same_groups ? current.same_groups_since : number};
  current_groups = std::move(given_groups);
}

void end_current_engine() {
  std::shared_ptr<Engine> last;  // released after the lock
  const std::lock_guard lock(current_mutex);
  last.swap(current.engine);
}

void set_job_of_program(std::int64_t program, std::int64_t job) {
  const std::lock_guard lock(current_mutex);
  std::int64_t& known = jobs_of_programs[program];
  known = std::max(known, job);
}

std::int64_t job_of_program(std::int64_t program) {
  const std::lock_guard lock(current_mutex);
  const auto found = jobs_of_programs.find(program);
  return found == jobs_of_programs.end() ? 0 : found->second;
}

}  // namespace farandole::python
