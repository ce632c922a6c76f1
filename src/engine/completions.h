// Completions: the completion functions of finished calls. The holder of the progress lock adds
// them under the lock of SharedState::guarded, and runs them after it has released that lock.
#pragma once

#include <utility>
#include <vector>

#include "farandole/engine.h"

namespace farandole {

class Completions {
 public:
  void add(Handle handle, const Completion& completion) {
    if (completion.function != nullptr) pending_.emplace_back(handle, completion);
  }
  // Runs each completion that was added since the last call.
  void run() {
    if (!pending_.empty()) run_all();
  }

  // Whether this thread is running a completion of any engine.
  static bool is_running_on_this_thread();

 private:
  void run_all();

  std::vector<std::pair<Handle, Completion>> pending_;
};

}  // namespace farandole
