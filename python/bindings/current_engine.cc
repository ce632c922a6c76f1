#include "current_engine.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace farandole::python {
namespace {

std::mutex current_mutex;
CurrentEngine stored_engine;
std::vector<std::vector<int>> current_groups;
std::map<std::int64_t, std::int64_t> job_by_program;

}  // namespace

CurrentEngine current_engine() {
  const std::lock_guard lock(current_mutex);
  return stored_engine;
}

void set_current_engine(std::shared_ptr<Engine> engine,
                        std::vector<std::vector<int>> given_groups) {
  const std::lock_guard lock(current_mutex);
  const std::int64_t job_number = stored_engine.job_number + 1;
  const bool has_same_groups = given_groups == current_groups;
  stored_engine = {std::move(engine), job_number,
                   has_same_groups ? stored_engine.first_job_with_same_groups : job_number};
  current_groups = std::move(given_groups);
}

void clear_current_engine() {
  std::shared_ptr<Engine> former_engine;  // declared first: destroyed after unlocking
  const std::lock_guard lock(current_mutex);
  former_engine.swap(stored_engine.engine);
}

void set_job_of_program(std::int64_t program, std::int64_t job) {
  const std::lock_guard lock(current_mutex);
  std::int64_t& recorded_job = job_by_program[program];
  recorded_job = std::max(recorded_job, job);
}

std::int64_t job_of_program(std::int64_t program) {
  const std::lock_guard lock(current_mutex);
  const auto entry = job_by_program.find(program);
  return entry == job_by_program.end() ? 0 : entry->second;
}

}  // namespace farandole::python
