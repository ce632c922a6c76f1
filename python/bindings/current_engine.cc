#include "current_engine.h"

#include <mutex>
#include <utility>

namespace farandole::python {
namespace {

std::mutex current_mutex;
CurrentEngine current;
std::vector<std::vector<int>> current_groups;

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

}  // namespace farandole::python
