#include "current_engine.h"

#include <mutex>
#include <utility>

namespace farandole::python {
namespace {

std::mutex current_mutex;
CurrentEngine current;

}  // namespace

CurrentEngine current_engine() {
  const std::lock_guard lock(current_mutex);
  return current;
}

void begin_current_engine(std::shared_ptr<Engine> engine) {
  const std::lock_guard lock(current_mutex);
  current = {std::move(engine), current.number + 1};
}

void end_current_engine() {
  std::shared_ptr<Engine> last;  // released after the lock
  const std::lock_guard lock(current_mutex);
  last.swap(current.engine);
}

}  // namespace farandole::python
