#include "call_batch.h"

#include <utility>

namespace farandole::python {

void CallBatch::start(std::unique_ptr<CallBatch> batch, Engine& engine,
                      std::vector<Submission> calls, std::chrono::milliseconds wait_limit) {
  batch->engine_ = &engine;
  batch->unfinished_count_ = calls.size();
  batch->contexts_.reserve(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    batch->contexts_.push_back({batch.get(), i});
    calls[i].completion = {&CallBatch::on_call_done, &batch->contexts_[i]};
  }
  // After this line, the completions own the batch. They may destroy the batch before
  // submit_batch() returns.
  CallBatch* const owned_by_completions = batch.release();
  const auto handles = engine.submit_batch(calls, wait_limit);
  if (handles.ok()) return;
  batch.reset(owned_by_completions);  // no call was submitted, so no completion will run
  batch->finish(handles.status());
}

void CallBatch::on_call_done(void* context, Handle handle) noexcept {
  const auto [batch, index] = *static_cast<CompletionContext*>(context);
  batch->finish_call(index, handle);
}

void CallBatch::finish_call(std::size_t index, Handle handle) {
  const Outcome outcome = engine_->take(handle);
  const Status status = outcome.status.ok() ? store_result(index, outcome) : outcome.status;
  {
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = status;
    if (--unfinished_count_ > 0) return;
  }
  const std::unique_ptr<CallBatch> last_owner(this);
  finish(failure_);
}

}  // namespace farandole::python
