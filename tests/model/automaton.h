// Automaton: the local states of all model threads, numbered. A local state is the thread's object
// at its last checkpoint, and the results of its operations since then. The thread's next operation
// depends on nothing else. So the automaton runs the code of each operation once, and later looks
// up the local state that follows.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "model_atomics.h"

namespace farandole::model {

// A thread of a scenario, between two calls of run(). The object holds everything that the thread's
// code remembers, and write_key() writes every value in which two such objects can differ.
class ModelThread {
 public:
  virtual ~ModelThread() = default;
  virtual std::unique_ptr<ModelThread> clone() const = 0;
  virtual void write_key(ByteWriter& key) const = 0;
  virtual bool has_finished() const = 0;
  // Runs the code from one checkpoint to the next. To learn the next operation, the automaton runs
  // the code again from the checkpoint, with the results of the earlier operations.
  virtual void run() = 0;
};

// A thread whose clone() copies the object.
template <class Derived>
class CopiedThread : public ModelThread {
 public:
  std::unique_ptr<ModelThread> clone() const override {
    return std::make_unique<Derived>(static_cast<const Derived&>(*this));
  }
};

using LocalState = std::uint32_t;

class Automaton {
 public:
  explicit Automaton(Arena& arena) : arena_(arena) {}

  LocalState start_state(const ModelThread& thread);
  const Operation& pending_operation(LocalState state) const {
    return states_[state].pending_operation;
  }
  LocalState state_after(LocalState state, Value result);
  std::size_t size() const { return states_.size(); }

 private:
  struct StateRecord {
    std::shared_ptr<const ModelThread> checkpoint;  // shared by the states that follow it
    std::vector<Value> results;
    Operation pending_operation;
    std::unordered_map<Value, LocalState> state_after;
  };

  LocalState state_of(std::shared_ptr<const ModelThread> checkpoint, std::vector<Value> results);

  Arena& arena_;
  std::vector<StateRecord> states_;
  std::unordered_map<std::string, LocalState> numbers_;
};

}  // namespace farandole::model
