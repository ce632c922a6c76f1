// Atomics for the model explorer: the shipped classes, instantiated with ModelAtomics, run on
// memory that the explorer owns. An atomic object is only a place in an Arena. Each operation on it
// goes to the Execution of the thread that runs now. The Execution replays known results, and stops
// at the first operation whose result is not known yet.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace farandole::model {

using Value = std::uint64_t;
using Word = std::uint16_t;  // a place in the model's memory

enum class Action : std::uint8_t {
  kLoad,
  kStore,
  kAdd,
  kCompareExchange,
  kFutexWait,
  kFutexWake,
  kAwait,  // blocks until the word is at least the operand; stands for poll() on a descriptor
  kFail,   // an assertion of the scenario is broken
  kEnd,
};

struct Operation {
  Action action = Action::kEnd;
  bool drains_buffer = false;  // a store that waits until the thread's store buffer is empty
  bool release = false;   // a store that others see only after all earlier stores of the thread
  bool is_ghost = false;  // bookkeeping of the scenario; runs together with the operation before it
  Word word = 0;
  Value operand = 0;
  Value expected = 0;
  const char* text = "";
};

// The purpose of a word. Planted bugs select words by their Site.
enum class Site : std::uint8_t {
  kOther,
  kBell,
  kAsleep,
  kPayload,
  kWord,
  kPhase,
  kDone,
  kData,
  kAwaited,
  kCount
};

// Bugs that change how the operations of the shipped code reach the memory.
struct StoreBugs {
  // Stores to these sites have the order release instead of seq_cst.
  std::array<bool, static_cast<std::size_t>(Site::kCount)> weak_store{};
  bool word_before_payload = false;
  bool phase_before_data = false;
  bool split_word = false;  // stores the sequence first, then the payload, then the generation

  bool& weak(Site site) { return weak_store[static_cast<std::size_t>(site)]; }
};

class Arena;

// One run of a thread from its last checkpoint to the next operation whose result is not known.
class Execution {
 public:
  struct Stop {};  // thrown to leave the thread's code

  Execution(Arena& arena, const std::vector<Value>& results);
  ~Execution();
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  Value perform(const Operation& operation);
  const std::optional<Operation>& pending_operation() const { return pending_operation_; }
  bool has_replayed_all() const { return next_result_ == results_.size(); }

  // While the execution is muted, the thread does not read or ring bells.
  void mute(bool muted) { muted_ = muted; }
  void store(const void* place, Value value, std::memory_order order);
  Value load(const void* place);
  Value add(const void* place, Value operand);
  Value compare_exchange(const void* place, Value expected, Value desired);
  void futex(Action action, const void* place, Value expected);

 private:
  bool is_muted(const void* place) const;
  void store_entry_word(const void* place, Value value, std::memory_order order);
  void store_deferred();
  void store_now(const void* place, Value value, std::memory_order order);

  Arena& arena_;
  const std::vector<Value>& results_;
  std::size_t next_result_ = 0;
  std::optional<Operation> pending_operation_;
  bool muted_ = false;
  std::vector<std::pair<const void*, Value>> deferred_;  // stores that a planted bug delays
};

// The memory of the scenario's objects. containing() finds the arena of any address inside it.
class Arena {
 public:
  static constexpr int kNoOwner = -1;

  Arena();
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  static Arena& containing(const void* place);

  // Returns zeroed memory that is aligned as the shipped lines are.
  std::byte* allocate(std::size_t bytes);
  // Names a word. If the word has an owner (a thread's number), only that thread may store to it,
  // which is checked. The owner's loads then need no interleaving.
  void mark(const void* place, std::string name, Site site = Site::kOther, int owner = kNoOwner);

  // Names a word that always has this value, which is checked. So loads of this word need no
  // interleaving.
  void mark_constant(const void* place, std::string name, Value value);

  Word word_of(const void* place);
  const std::string& name_of(Word word) const { return words_[word].name; }
  Site site_of(Word word) const { return words_[word].site; }
  int owner_of(Word word) const { return words_[word].owner; }

  Execution& execution();
  StoreBugs store_bugs;

 private:
  friend class Execution;
  struct Entry {
    std::string name;
    Site site;
    int owner;
    std::optional<Value> constant = std::nullopt;
  };

  std::byte* block_;
  std::size_t used_;
  std::vector<std::int32_t> index_;  // by the offset of a place / 4; −1 if the place is unused
  std::vector<Entry> words_;
  Execution* execution_ = nullptr;  // borrowed while that execution exists
};

// A variable of the scenario itself, in the arena. get() and set() are not interleaved: they run
// together with the operation before them.
class Ghost {
 public:
  explicit Ghost(Arena& arena, const std::string& name);
  Value get() const;
  void set(Value value) const;
  Word word() const;
  // A message through the kernel. Unlike get() and set(), send() and await() are interleaved.
  void send(Value value) const;
  Value await(Value value) const;  // blocks until the value is at least `value`

 private:
  Arena* arena_;
  const void* place_;
};

// Blocks until the word is at least `value`.
Value await(const void* place, Value value);

void require(Arena& arena, bool condition, const char* what_broke);

struct ModelAtomics {
  template <class T>
  class Atomic {
   public:
    T load(std::memory_order) const { return static_cast<T>(execution().load(this)); }
    void store(T value, std::memory_order order) {
      execution().store(this, static_cast<Value>(value), order);
    }
    T fetch_add(T operand, std::memory_order) {
      return static_cast<T>(execution().add(this, static_cast<Value>(operand)));
    }
    bool compare_exchange_strong(T& expected, T desired, std::memory_order) {
      const auto found = static_cast<T>(execution().compare_exchange(
          this, static_cast<Value>(expected), static_cast<Value>(desired)));
      const bool exchanged = found == expected;
      expected = found;
      return exchanged;
    }

   private:
    Execution& execution() const { return Arena::containing(this).execution(); }
    [[maybe_unused]] T place_;
  };

  static void futex_wait(Atomic<std::uint32_t>& word, std::uint32_t expected, Duration) {
    Arena::containing(&word).execution().futex(Action::kFutexWait, &word, expected);
  }
  static void futex_wake(Atomic<std::uint32_t>& word) {
    Arena::containing(&word).execution().futex(Action::kFutexWake, &word, 0);
  }
  // Eight bytes are one word of the model.
  static void write_bytes(std::byte* shared, const std::byte* from, std::size_t bytes);
  static void read_bytes(std::byte* to, const std::byte* shared, std::size_t bytes);
};

}  // namespace farandole::model
