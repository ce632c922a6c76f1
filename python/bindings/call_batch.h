// Calls that a framework makes in its own threads, without the GIL. These threads can continue
// before the calls are done.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "farandole/engine.h"

namespace farandole::python {

// The calls that one operation of a framework submits together. When a call is done, the engine
// runs the completion of this call. The completion that runs last calls finish(), and then destroys
// this object.
class CallBatch {
 public:
  CallBatch() = default;
  virtual ~CallBatch() = default;
  CallBatch(const CallBatch&) = delete;
  CallBatch& operator=(const CallBatch&) = delete;

  // Submits one call or more. If the calls cannot be submitted, start() calls finish() with the
  // error. Otherwise, start() waits until the calls are done, but not longer than `wait_limit`.
  // `engine` must exist until start() returns. Completions that run later can use the engine, too,
  // because the engine runs all completions before it is destroyed.
  static void start(std::unique_ptr<CallBatch> batch, Engine& engine, std::vector<Submission> calls,
                    std::chrono::milliseconds wait_limit = {});

 protected:
  // Stores the result of one call that has succeeded. Several threads may run this function at the
  // same time, for different calls.
  virtual Status store_result(std::size_t index, const Outcome& outcome) = 0;
  // Reports to the framework that all calls are done. `failure` is the first failure of a call, or
  // ok if all calls have succeeded. finish() runs in the thread that has finished the last call.
  // This may be a thread of the engine.
  virtual void finish(const Status& failure) = 0;

 private:
  struct CompletionContext {
    CallBatch* batch;
    std::size_t index;
  };

  static void on_call_done(void* context, Handle handle) noexcept;
  void finish_call(std::size_t index, Handle handle);

  Engine* engine_ = nullptr;
  std::vector<CompletionContext> contexts_;
  std::mutex mutex_;  // guards the members below
  std::size_t unfinished_count_ = 0;
  Status failure_;
};

}  // namespace farandole::python
