#include "machine.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "base/format.h"

namespace farandole::model {
namespace {

static_assert(std::has_unique_object_representations_v<MachineState>);
static_assert(sizeof(MachineState) % sizeof(std::uint64_t) == 0);

constexpr bool is_buffered(const Operation& operation) {
  return operation.action == Action::kStore && !operation.drains_buffer && !operation.is_ghost;
}

// True if other threads see the operation at once, and after all earlier stores of its thread.
constexpr bool needs_empty_buffer(const Operation& operation) {
  switch (operation.action) {
    case Action::kStore:
      return operation.drains_buffer;
    case Action::kAdd:
    case Action::kCompareExchange:
    case Action::kFutexWait:
    case Action::kFutexWake:
      return true;
    default:
      return false;
  }
}

constexpr std::uint32_t bit(std::size_t member) { return std::uint32_t{1} << member; }

const char* verb_of(Action action) {
  switch (action) {
    case Action::kLoad:
      return "loads";
    case Action::kStore:
      return "stores";
    case Action::kAdd:
      return "adds to";
    case Action::kCompareExchange:
      return "compares and exchanges";
    case Action::kFutexWait:
      return "goes to sleep on";
    case Action::kFutexWake:
      return "wakes the sleepers of";
    case Action::kAwait:
      return "awaits";
    default:
      return "ends";
  }
}

}  // namespace

std::uint64_t MachineState::fingerprint() const {
  std::array<std::uint64_t, sizeof(MachineState) / sizeof(std::uint64_t)> parts;
  std::memcpy(parts.data(), this, sizeof(*this));
  std::uint64_t hash = 0x9e3779b97f4a7c15;
  for (const std::uint64_t part : parts) {
    // Multiply and fold, as wyhash does.
    const auto product =
        static_cast<unsigned __int128>(hash ^ part) * 0xa0761d6478bd642fULL + 0xe7037ed1a0b428dbULL;
    hash = static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }
  return hash;
}

Machine::Machine(const Scenario& scenario, bool partial_store_order)
    : scenario_(scenario),
      automaton_(*scenario.arena),
      partial_store_order_(partial_store_order),
      guards_(kWordsMax, nullptr) {
  CHECK(scenario.threads.size() <= kThreadsMax, "the model has a fixed number of threads");
  number_of(0);
  for (const Scenario::Guard& guard : scenario.guards) guards_[guard.word] = &guard;
}

MachineState Machine::start_state() {
  broken_assertion_.reset();
  MachineState state{};
  for (std::size_t thread_index = 0; thread_index < scenario_.threads.size(); ++thread_index) {
    state.threads[thread_index].local =
        automaton_.start_state(*scenario_.threads[thread_index].start);
    advance_alone(thread_index, state);
  }
  return state;
}

bool Machine::is_alive(const MachineState& state, std::size_t thread) const {
  const auto member = static_cast<std::size_t>(scenario_.threads[thread].member);
  return (state.dead & bit(member)) == 0;
}

bool Machine::may_die(std::size_t thread) const {
  const auto member = static_cast<std::size_t>(scenario_.threads[thread].member);
  return member < scenario_.mortal.size() && scenario_.mortal[member];
}

bool Machine::can_step(const MachineState& state, std::size_t thread) const {
  if (!is_alive(state, thread)) return false;
  const Thread& thread_state = state.threads[thread];
  const Operation& next = automaton_.pending_operation(thread_state.local);
  if (next.action == Action::kEnd || thread_state.asleep != 0) return false;
  if (next.action == Action::kAwait) return values_[state.memory[next.word]] >= next.operand;
  if (is_buffered(next)) return thread_state.buffered_count < kBufferedMax;
  return thread_state.buffered_count == 0 || !needs_empty_buffer(next);
}

bool Machine::can_drain(const Thread& thread, std::size_t entry) const {
  if (entry == 0) return true;
  if (!partial_store_order_ || thread.buffer[entry].release != 0) return false;
  return std::none_of(thread.buffer.begin(), thread.buffer.begin() + static_cast<long>(entry),
                      [&](const auto& older) { return older.word == thread.buffer[entry].word; });
}

void Machine::list_choices(const MachineState& state, std::vector<Choice>& choices) const {
  choices.clear();
  for (std::size_t thread_index = 0; thread_index < scenario_.threads.size(); ++thread_index) {
    const Operation& next = automaton_.pending_operation(state.threads[thread_index].local);
    // The value of an awaited word never decreases. So the explorer misses no behaviour if it moves
    // the thread that awaits the word before it moves any other thread.
    if (next.action != Action::kAwait || next.operand == 0 || !can_step(state, thread_index))
      continue;
    choices.push_back({Choice::Kind::kStep, static_cast<std::uint8_t>(thread_index), 0});
    return;
  }
  for (std::size_t thread_index = 0; thread_index < scenario_.threads.size(); ++thread_index) {
    const auto number = static_cast<std::uint8_t>(thread_index);
    if (can_step(state, thread_index)) choices.push_back({Choice::Kind::kStep, number, 0});
    const Thread& thread = state.threads[thread_index];
    for (std::uint8_t entry = 0; entry < thread.buffered_count; ++entry)
      if (can_drain(thread, entry)) choices.push_back({Choice::Kind::kDrain, number, entry});
  }
  for (std::size_t member = 0; member < scenario_.mortal.size(); ++member) {
    const auto number = static_cast<std::uint8_t>(member);
    const bool dead = (state.dead & bit(member)) != 0;
    if (dead && (state.reaped & bit(member)) == 0)
      choices.push_back({Choice::Kind::kReap, number, 0});
    if (!dead && scenario_.mortal[member] &&
        state.deaths < static_cast<std::uint32_t>(scenario_.deaths_max))
      choices.push_back({Choice::Kind::kDie, number, 0});
  }
}

std::optional<std::string> Machine::apply(const Choice& choice, MachineState& state) {
  broken_assertion_.reset();
  switch (choice.kind) {
    case Choice::Kind::kStep:
      step(choice.index, state);
      break;
    case Choice::Kind::kDrain:
      drain(choice.index, choice.entry, state);
      break;
    case Choice::Kind::kDie:
      die(choice.index, state);
      break;
    case Choice::Kind::kReap:
      reap(choice.index, state);
      break;
  }
  return broken_assertion_;
}

void Machine::step(std::size_t thread_index, MachineState& state) {
  Thread& thread_state = state.threads[thread_index];
  const Operation operation = automaton_.pending_operation(thread_state.local);
  if (operation.action == Action::kFutexWait &&
      values_[state.memory[operation.word]] == operation.expected) {
    thread_state.asleep = 1;
    return;
  }
  thread_state.local =
      automaton_.state_after(thread_state.local, execute(operation, thread_index, state));
  advance_alone(thread_index, state);
}

void Machine::drain(std::size_t thread_index, std::size_t entry, MachineState& state) {
  Thread& thread_state = state.threads[thread_index];
  const auto drained = thread_state.buffer.begin() + static_cast<long>(entry);
  const auto stored = *drained;
  std::move(drained + 1, thread_state.buffer.begin() + thread_state.buffered_count, drained);
  thread_state.buffer[--thread_state.buffered_count] = {};
  commit(stored.word, stored.value, thread_index, state);
  if (is_alive(state, thread_index)) advance_alone(thread_index, state);
}

void Machine::die(std::size_t member, MachineState& state) {
  ++state.deaths;
  state.dead |= bit(member);
  for (std::size_t thread_index = 0; thread_index < scenario_.threads.size(); ++thread_index) {
    if (is_alive(state, thread_index)) continue;
    state.threads[thread_index].local = 0;
    state.threads[thread_index].asleep = 0;
  }
}

void Machine::reap(std::size_t member, MachineState& state) {
  state.reaped |= bit(member);
  // A store may still be in the buffer of its thread, where no other thread sees it. Dropping the
  // store here is the same as a death of the member before the store.
  for (std::size_t thread_index = 0; thread_index < scenario_.threads.size(); ++thread_index)
    if (!is_alive(state, thread_index)) state.threads[thread_index] = {};
  state.memory[scenario_.reaped[member].word()] = number_of(1);
}

bool Machine::affects_no_other_thread(const Thread& thread, std::size_t thread_index) const {
  const Operation& next = automaton_.pending_operation(thread.local);
  if (next.is_ghost) return true;
  if (is_buffered(next)) return thread.buffered_count < kBufferedMax;
  // The time of a wake-up makes no difference, because a thread that is woken early may still run
  // late. But if the waker may die before the wake-up, the time matters.
  if (next.action == Action::kFutexWake)
    return !may_die(thread_index) && thread.buffered_count == 0;
  return next.action == Action::kLoad &&
         scenario_.arena->owner_of(next.word) == static_cast<int>(thread_index);
}

void Machine::advance_alone(std::size_t thread_index, MachineState& state) {
  Thread& thread_state = state.threads[thread_index];
  while (!broken_assertion_ && affects_no_other_thread(thread_state, thread_index)) {
    const Operation operation = automaton_.pending_operation(thread_state.local);
    if (operation.action == Action::kFail) {
      broken_assertion_ = operation.text;
      return;
    }
    thread_state.local =
        automaton_.state_after(thread_state.local, execute(operation, thread_index, state));
  }
}

std::uint16_t Machine::visible_value(Word word, const Thread& thread,
                                     const MachineState& state) const {
  for (std::size_t entry = thread.buffered_count; entry-- > 0;)
    if (thread.buffer[entry].word == word) return thread.buffer[entry].value;
  return state.memory[word];
}

// The owner of a bell only needs to know whether the bell was rung since the owner's last load. So
// a load sets the bell to 0, and a ring sets it to 1. This merges states that differ only in the
// number of rings.
bool Machine::is_bell(Word word) const { return scenario_.arena->site_of(word) == Site::kBell; }

void Machine::check_owner(const Operation& operation, std::size_t thread_index) const {
  const int owner = scenario_.arena->owner_of(operation.word);
  CHECK(owner == Arena::kNoOwner || owner == static_cast<int>(thread_index),
        "a word that is marked with an owner has no other writer");
}

Value Machine::execute(const Operation& operation, std::size_t thread_index, MachineState& state) {
  Thread& thread_state = state.threads[thread_index];
  CHECK(operation.word < kWordsMax, "the scenario fits into the model's memory");
  const Value before = values_[state.memory[operation.word]];
  switch (operation.action) {
    case Action::kLoad:
      if (is_bell(operation.word)) state.memory[operation.word] = 0;
      return values_[visible_value(operation.word, thread_state, state)];
    case Action::kStore:
      check_owner(operation, thread_index);
      if (is_buffered(operation))
        thread_state.buffer[thread_state.buffered_count++] = {
            operation.word, number_of(operation.operand), operation.release};
      else
        commit(operation.word, number_of(operation.operand), thread_index, state);
      return 0;
    case Action::kAdd:
      commit(operation.word, number_of(is_bell(operation.word) ? 1 : before + operation.operand),
             thread_index, state);
      return before;
    case Action::kCompareExchange:
      if (before == operation.expected)
        commit(operation.word, number_of(operation.operand), thread_index, state);
      return before;
    case Action::kFutexWake:
      wake(operation.word, state);
      return 0;
    case Action::kAwait:
      return before;
    default:
      return 0;  // the futex's word differed
  }
}

void Machine::wake(Word word, MachineState& state) {
  for (std::size_t thread_index = 0; thread_index < scenario_.threads.size(); ++thread_index) {
    Thread& sleeper = state.threads[thread_index];
    if (sleeper.asleep == 0 || automaton_.pending_operation(sleeper.local).word != word) continue;
    sleeper.asleep = 0;
    sleeper.local = automaton_.state_after(sleeper.local, 0);
    advance_alone(thread_index, state);
  }
}

void Machine::commit(Word word, std::uint16_t value, std::size_t thread_index,
                     MachineState& state) {
  const Scenario::Guard* const guard = guards_[word];
  if (guard != nullptr && guard->owner != static_cast<int>(thread_index) &&
      state.memory[guard->since.word()] != 0)
    broken_assertion_ =
        format_text("{} was written after its owner had it back", scenario_.arena->name_of(word));
  state.memory[word] = value;
}

std::uint16_t Machine::number_of(Value value) {
  const auto [place, is_new] =
      numbers_.try_emplace(value, static_cast<std::uint16_t>(values_.size()));
  if (is_new) values_.push_back(value);
  CHECK(values_.size() < 0xffff, "a scenario has few different values");
  return place->second;
}

bool Machine::all_finished(const MachineState& state) const {
  for (std::size_t thread_index = 0; thread_index < scenario_.threads.size(); ++thread_index)
    if (is_alive(state, thread_index) && !scenario_.threads[thread_index].daemon &&
        automaton_.pending_operation(state.threads[thread_index].local).action != Action::kEnd)
      return false;
  return true;
}

std::string Machine::describe_stuck(const MachineState& state) const {
  std::string text;
  for (std::size_t thread_index = 0; thread_index < scenario_.threads.size(); ++thread_index) {
    const Operation& next = automaton_.pending_operation(state.threads[thread_index].local);
    if (!is_alive(state, thread_index) || next.action == Action::kEnd ||
        scenario_.threads[thread_index].daemon)
      continue;
    text +=
        format_text("{}{} {} {}", text.empty() ? "" : "; ", scenario_.threads[thread_index].name,
                    state.threads[thread_index].asleep != 0 ? "sleeps on" : verb_of(next.action),
                    scenario_.arena->name_of(next.word));
  }
  return text;
}

std::string Machine::describe(const Choice& choice, const MachineState& state) const {
  if (choice.kind == Choice::Kind::kDie) return format_text("member {} dies", choice.index);
  if (choice.kind == Choice::Kind::kReap) return format_text("member {} is reaped", choice.index);
  const Thread& thread = state.threads[choice.index];
  const std::string& name = scenario_.threads[choice.index].name;
  if (choice.kind == Choice::Kind::kDrain) {
    const auto& stored = thread.buffer[choice.entry];
    return format_text("{}'s store of {:#x} to {} is seen", name, values_[stored.value],
                       scenario_.arena->name_of(stored.word));
  }
  const Operation& next = automaton_.pending_operation(thread.local);
  const Value operand = next.action == Action::kLoad
                            ? values_[visible_value(next.word, thread, state)]
                            : next.operand;
  return format_text("{} {} {} ({:#x})", name, verb_of(next.action),
                     scenario_.arena->name_of(next.word), operand);
}

}  // namespace farandole::model
