// Completions: the functions that callers have given with their calls. The holder of the progress
// lock collects those of finished calls while it has the guard, and runs them without it.
#pragma once

#include <utility>
#include <vector>

#include "farandole/engine.h"

namespace farandole {

class Completions {
 public:
  void add(Handle handle, const Completion& completion) {
    if (completion.function != nullptr) waiting_.emplace_back(handle, completion);
  }
  // Runs those that were added, each once.
  void run() {
    if (!waiting_.empty()) run_all();
  }

  // Whether this thread is inside a completion, of any engine.
  static bool is_running_here();

 private:
  void run_all();

  std::vector<std::pair<Handle, Completion>> waiting_;
};

}  // namespace farandole
