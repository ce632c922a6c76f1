// InFlight: the submissions of this member that are not completed, in the order of submission.
// Every step uses it, so it finds submissions by name in constant time and copies no signatures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "base/signature.h"
#include "control/submission_context.h"
#include "coordination/decision.h"

namespace farandole {

class InFlight {
 public:
  // The index of a submission. After the submission was removed, another one may get the same
  // index.
  using Slot = std::uint32_t;
  static constexpr Slot kNone = std::numeric_limits<Slot>::max();

  struct Call {
    CallId call_id = 0;
    const InternedSignature* interned = nullptr;
    SubmissionContext context;
    bool is_in_decision = false;     // a decision contains the submission
    bool announced = false;          // the submission has a valid announcement
    std::uint32_t announced_id = 0;  // the announced id; 0 if the whole signature was announced
    Slot earlier = kNone;            // the previous call, in the order of submission
    Slot later = kNone;
  };

  InFlight() = default;
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  // Adds a submission. Its name must not be in flight. `interned` is borrowed until remove().
  Slot add(CallId call_id, const InternedSignature& interned, const SubmissionContext& context);
  void remove(Slot slot);

  // Finds the submission of this name; returns kNone if there is none.
  Slot find(std::uint64_t name_digest, std::string_view name) const;
  Slot find(const InternedSignature& interned) const {
    return find(interned.name_digest, interned.signature.name);
  }
  Call& operator[](Slot slot) { return calls_[slot]; }
  const Call& operator[](Slot slot) const { return calls_[slot]; }

  // To visit the submissions in order: begin with first(), and follow `later` until it is kNone.
  Slot first() const { return first_; }
  std::size_t size() const { return size_; }

 private:
  struct TableEntry {
    std::uint64_t name_digest = 0;
    Slot slot = kNone;
  };

  std::size_t home_of(std::uint64_t name_digest) const { return name_digest & (table_.size() - 1); }
  std::size_t next_index(std::size_t index) const { return (index + 1) & (table_.size() - 1); }
  void insert_entry(std::uint64_t name_digest, Slot slot);
  void erase_entry(Slot slot);
  void grow();

  std::vector<Call> calls_;
  std::vector<Slot> unused_slots_;
  Slot first_ = kNone;
  Slot last_ = kNone;
  std::size_t size_ = 0;
  // A hash table with open addressing and linear probing. Its size is a power of two, and at most
  // half of its entries are used.
  std::vector<TableEntry> table_ = std::vector<TableEntry>(64);
};

}  // namespace farandole
