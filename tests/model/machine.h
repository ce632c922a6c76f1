// Machine: the memory, the store buffers and the sleeping threads of a scenario as one small value,
// and the effect of each choice of the scheduler on this value.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "automaton.h"
#include "scenario.h"

namespace farandole::model {

inline constexpr std::size_t kWordsMax = 176;
inline constexpr std::size_t kThreadsMax = 8;
inline constexpr std::size_t kBufferedMax = 8;  // stores of one thread that others do not see yet

// Has no padding, so that equal states have equal bytes. The values in `memory` and in the buffers
// are indices into Machine::values_.
struct MachineState {
  struct BufferedStore {
    std::uint16_t word;
    std::uint16_t value;
    std::uint32_t release;
  };
  struct Thread {
    LocalState local;
    std::uint16_t asleep;  // 1 while the thread sleeps on a futex
    std::uint16_t buffered_count;
    std::array<BufferedStore, kBufferedMax> buffer;  // oldest first
  };
  std::array<std::uint16_t, kWordsMax> memory;
  std::array<Thread, kThreadsMax> threads;
  std::uint32_t deaths;
  std::uint32_t dead;    // bits by member
  std::uint32_t reaped;  // bits by member
  std::uint32_t unused;  // takes the place of padding

  std::uint64_t fingerprint() const;
};

// One move of the scheduler.
struct Choice {
  enum class Kind : std::uint8_t { kStep, kDrain, kDie, kReap };
  Kind kind = Kind::kStep;
  std::uint8_t index = 0;  // thread, or member for kDie and kReap
  std::uint8_t entry = 0;  // the place in the store buffer, for kDrain
};

class Machine {
 public:
  Machine(const Scenario& scenario, bool partial_store_order);

  MachineState start_state();
  // The moves that are possible now. Deaths come last; they do not count as progress.
  void list_choices(const MachineState& state, std::vector<Choice>& choices) const;
  // Makes a move. Returns the text of the assertion that the move breaks, if any.
  std::optional<std::string> apply(const Choice& choice, MachineState& state);
  // For a state in which no thread can move: names the threads that have not finished.
  std::string describe_stuck(const MachineState& state) const;
  bool all_finished(const MachineState& state) const;
  std::string describe(const Choice& choice, const MachineState& state) const;

 private:
  using Thread = MachineState::Thread;

  bool is_alive(const MachineState& state, std::size_t thread) const;
  bool may_die(std::size_t thread) const;
  bool can_step(const MachineState& state, std::size_t thread) const;
  bool can_drain(const Thread& thread, std::size_t entry) const;
  void step(std::size_t thread_index, MachineState& state);
  void drain(std::size_t thread_index, std::size_t entry, MachineState& state);
  void die(std::size_t member, MachineState& state);
  void reap(std::size_t member, MachineState& state);
  // Advances a thread as long as its next operation affects no other thread.
  void advance_alone(std::size_t thread_index, MachineState& state);
  bool affects_no_other_thread(const Thread& thread, std::size_t thread_index) const;
  Value execute(const Operation& operation, std::size_t thread_index, MachineState& state);
  void wake(Word word, MachineState& state);
  void commit(Word word, std::uint16_t value, std::size_t thread_index, MachineState& state);
  std::uint16_t visible_value(Word word, const Thread& thread, const MachineState& state) const;
  bool is_bell(Word word) const;
  void check_owner(const Operation& operation, std::size_t thread_index) const;

  std::uint16_t number_of(Value value);

  const Scenario& scenario_;
  Automaton automaton_;
  bool partial_store_order_;
  std::vector<Value> values_;  // by their numbers; the value 0 has the number 0
  std::unordered_map<Value, std::uint16_t> numbers_;
  std::vector<const Scenario::Guard*> guards_;   // by word; null if the word has no guard
  std::optional<std::string> broken_assertion_;  // the text of the assertion that this move broke
};

}  // namespace farandole::model
