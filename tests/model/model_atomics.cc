#include "model_atomics.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "transport/shm/doorbells.h"

namespace farandole::model {
namespace {

constexpr std::size_t kArenaBytes = 1 << 16;  // also the alignment: containing() rounds down to it

constexpr Value kGenerationBits = ~Value{0} << 32;

}  // namespace

Execution::Execution(Arena& arena, const std::vector<Value>& results)
    : arena_(arena), results_(results) {
  arena_.execution_ = this;
}

Execution::~Execution() { arena_.execution_ = nullptr; }

Value Execution::perform(const Operation& operation) {
  if (next_result_ < results_.size()) return results_[next_result_++];
  pending_operation_ = operation;
  throw Stop{};
}

bool Execution::is_muted(const void* place) const {
  const Site site = arena_.site_of(arena_.word_of(place));
  return muted_ && (site == Site::kBell || site == Site::kAsleep);
}

void Execution::store(const void* place, Value value, std::memory_order order) {
  const auto& entry = arena_.words_[arena_.word_of(place)];
  if (entry.constant) {
    CHECK(value == *entry.constant, "a word that is marked as constant keeps its value");
    return;
  }
  const StoreBugs& store_bugs = arena_.store_bugs;
  const bool defers = store_bugs.word_before_payload || store_bugs.split_word;
  if (defers && entry.site == Site::kPayload) {
    deferred_.emplace_back(place, value);
  } else if (defers && entry.site == Site::kWord) {
    store_entry_word(place, value, order);
  } else if (store_bugs.phase_before_data && entry.site == Site::kData) {
    deferred_.emplace_back(place, value);
  } else {
    store_now(place, value, order);
    if (store_bugs.phase_before_data && entry.site == Site::kPhase) store_deferred();
  }
}

void Execution::store_deferred() {
  for (const auto& [place, value] : std::exchange(deferred_, {}))
    store_now(place, value, std::memory_order_relaxed);
}

void Execution::store_entry_word(const void* place, Value value, std::memory_order order) {
  if (arena_.store_bugs.split_word) {
    const Value before =
        perform({.action = Action::kLoad, .is_ghost = true, .word = arena_.word_of(place)});
    const Value sequence_only = (before & kGenerationBits) | (value & ~kGenerationBits);
    store_now(place, sequence_only, std::memory_order_relaxed);
  } else {
    store_now(place, value, order);
  }
  store_deferred();
  if (arena_.store_bugs.split_word) store_now(place, value, order);
}

void Execution::store_now(const void* place, Value value, std::memory_order order) {
  const bool weak = arena_.store_bugs.weak(arena_.site_of(arena_.word_of(place)));
  perform({.action = Action::kStore,
           .drains_buffer = order == std::memory_order_seq_cst && !weak,
           .release = order != std::memory_order_relaxed,
           .word = arena_.word_of(place),
           .operand = value});
}

Value Execution::load(const void* place) {
  if (is_muted(place)) return 0;
  if (const auto& constant = arena_.words_[arena_.word_of(place)].constant) return *constant;
  return perform({.action = Action::kLoad, .word = arena_.word_of(place)});
}

Value Execution::add(const void* place, Value operand) {
  if (is_muted(place)) return 0;
  return perform({.action = Action::kAdd, .word = arena_.word_of(place), .operand = operand});
}

Value Execution::compare_exchange(const void* place, Value expected, Value desired) {
  return perform({.action = Action::kCompareExchange,
                  .word = arena_.word_of(place),
                  .operand = desired,
                  .expected = expected});
}

void Execution::futex(Action action, const void* place, Value expected) {
  if (action == Action::kFutexWake && is_muted(place)) return;
  perform({.action = action, .word = arena_.word_of(place), .expected = expected});
}

Arena::Arena()
    : block_(static_cast<std::byte*>(std::aligned_alloc(kArenaBytes, kArenaBytes))),
      used_(kFlagLineBytes),
      index_(kArenaBytes / 4, -1) {
  CHECK(block_ != nullptr, "the model needs its memory");
  std::memset(block_, 0, kArenaBytes);
  Arena* const self = this;
  std::memcpy(block_, &self, sizeof(self));
}

Arena::~Arena() { std::free(block_); }

Arena& Arena::containing(const void* place) {
  const auto head = reinterpret_cast<std::uintptr_t>(place) & ~(kArenaBytes - 1);
  Arena* arena = nullptr;
  std::memcpy(&arena, reinterpret_cast<const void*>(head), sizeof(arena));
  return *arena;
}

std::byte* Arena::allocate(std::size_t bytes) {
  const std::size_t at = used_;
  used_ += (bytes + kFlagLineBytes - 1) / kFlagLineBytes * kFlagLineBytes;
  CHECK(used_ <= kArenaBytes, "the scenario fits into the model's memory");
  return block_ + at;
}

Word Arena::word_of(const void* place) {
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(place) - block_);
  CHECK(offset < kArenaBytes, "a place of the model lies in its arena");
  auto& index = index_[offset / 4];
  if (index < 0) {
    index = static_cast<std::int32_t>(words_.size());
    words_.push_back({format_text("+{}", offset), Site::kOther, kNoOwner});
  }
  return static_cast<Word>(index);
}

void Arena::mark(const void* place, std::string name, Site site, int owner) {
  words_[word_of(place)] = {std::move(name), site, owner};
}

void Arena::mark_constant(const void* place, std::string name, Value value) {
  words_[word_of(place)] = {std::move(name), Site::kOther, kNoOwner, value};
}

Execution& Arena::execution() {
  CHECK(execution_ != nullptr, "model memory is only touched by a thread of the model");
  return *execution_;
}

Ghost::Ghost(Arena& arena, const std::string& name)
    : arena_(&arena), place_(arena.allocate(sizeof(Value))) {
  arena.mark(place_, name);
}

Value Ghost::get() const {
  return arena_->execution().perform({.action = Action::kLoad, .is_ghost = true, .word = word()});
}

void Ghost::set(Value value) const {
  arena_->execution().perform(
      {.action = Action::kStore, .is_ghost = true, .word = word(), .operand = value});
}

Word Ghost::word() const { return arena_->word_of(place_); }

void Ghost::send(Value value) const {
  arena_->execution().perform(
      {.action = Action::kStore, .drains_buffer = true, .word = word(), .operand = value});
}

Value Ghost::await(Value value) const { return model::await(place_, value); }

Value await(const void* place, Value value) {
  Arena& arena = Arena::containing(place);
  return arena.execution().perform(
      {.action = Action::kAwait, .word = arena.word_of(place), .operand = value});
}

void require(Arena& arena, bool condition, const char* what_broke) {
  if (!condition)
    arena.execution().perform({.action = Action::kFail, .is_ghost = true, .text = what_broke});
}

void ModelAtomics::write_bytes(std::byte* shared, const std::byte* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += sizeof(Value)) {
    Value value = 0;
    std::memcpy(&value, from + at, std::min(sizeof(Value), bytes - at));
    Arena::containing(shared).execution().store(shared + at, value, std::memory_order_relaxed);
  }
}

void ModelAtomics::read_bytes(std::byte* to, const std::byte* shared, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += sizeof(Value)) {
    const Value value = Arena::containing(shared).execution().load(shared + at);
    std::memcpy(to + at, &value, std::min(sizeof(Value), bytes - at));
  }
}

}  // namespace farandole::model
