#include "automaton.h"

#include <optional>
#include <typeinfo>
#include <utility>

#include "base/check.h"

namespace farandole::model {
namespace {

std::string key_of(const ModelThread& checkpoint, const std::vector<Value>& results) {
  ByteWriter key;
  key.put_text(typeid(checkpoint).name());
  checkpoint.write_key(key);
  for (const Value result : results) key.put(result);
  const Bytes bytes = key.take();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Runs a thread from its checkpoint to the first operation whose result is not known, and returns
// this operation. Returns nothing if the thread reaches its next checkpoint before that.
std::optional<Operation> replay(Arena& arena, ModelThread& thread,
                                const std::vector<Value>& results) {
  Execution execution(arena, results);
  try {
    thread.run();
  } catch (const Execution::Stop&) {
    return execution.pending_operation();
  }
  CHECK(execution.has_replayed_all(), "a thread does the same when it runs again");
  return std::nullopt;
}

}  // namespace

LocalState Automaton::start_state(const ModelThread& thread) {
  return state_of(thread.clone(), {});
}

LocalState Automaton::state_after(LocalState state, Value result) {
  const auto known = states_[state].state_after.find(result);
  if (known != states_[state].state_after.end()) return known->second;
  auto results = states_[state].results;
  results.push_back(result);
  const LocalState next = state_of(states_[state].checkpoint, std::move(results));
  states_[state].state_after.emplace(result, next);
  return next;
}

LocalState Automaton::state_of(std::shared_ptr<const ModelThread> checkpoint,
                               std::vector<Value> results) {
  for (;;) {
    const auto [place, is_new] =
        numbers_.try_emplace(key_of(*checkpoint, results), static_cast<LocalState>(states_.size()));
    if (!is_new) return place->second;
    std::optional<Operation> pending_operation;
    std::shared_ptr<ModelThread> thread = checkpoint->clone();
    if (checkpoint->has_finished())
      pending_operation = Operation{};
    else
      pending_operation = replay(arena_, *thread, results);
    if (pending_operation) {
      states_.push_back({std::move(checkpoint), std::move(results), *pending_operation, {}});
      return place->second;
    }
    // The thread has reached its next checkpoint. Look for the state that consists of this
    // checkpoint, without any results.
    numbers_.erase(place);
    checkpoint = std::move(thread);
    results.clear();
  }
}

}  // namespace farandole::model
