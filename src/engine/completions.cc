#include "engine/completions.h"

namespace farandole {
namespace {

thread_local bool running_on_this_thread = false;

}  // namespace

bool Completions::is_running_on_this_thread() { return running_on_this_thread; }

// Calls of this function can nest, because a completion may submit to another engine, which then
// runs its own completions on this thread. So each call restores the flag's old value.
void Completions::run_all() {
  const bool was_running = std::exchange(running_on_this_thread, true);
  for (const auto& [handle, completion] : pending_) completion.function(completion.context, handle);
  pending_.clear();
  running_on_this_thread = was_running;
}

}  // namespace farandole
