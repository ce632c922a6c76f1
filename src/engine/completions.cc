#include "engine/completions.h"

namespace farandole {
namespace {

thread_local bool running_here = false;

}  // namespace

bool Completions::is_running_here() { return running_here; }

// Restores the old value of the flag at the end, because calls of this function can nest: a
// completion may submit to another engine, which then runs its own completions on this thread.
void Completions::run_all() {
  const bool was_running = std::exchange(running_here, true);
  for (const auto& [handle, completion] : pending_) completion.function(completion.context, handle);
  pending_.clear();
  running_here = was_running;
}

}  // namespace farandole
