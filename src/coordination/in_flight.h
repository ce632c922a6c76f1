// InFlight: what this member has submitted and not completed, in the order of submission. Finds
// submissions by name in constant time and copies nothing, because every step passes through here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "base/signature.h"
#include "coordination/decision.h"
#include "coordination/submission_context.h"

namespace farandole {

class InFlight {
 public:
  // The place of a submission. After it was removed, another submission may use it.
  using Slot = std::uint32_t;
  static constexpr Slot kNone = std::numeric_limits<Slot>::max();

  struct Call {
    CallId call_id = 0;
    const InternedSignature* interned = nullptr;
    SubmissionContext context;
    bool taken = false;       // a decision contains it
    bool announced = false;   // it was announced, and the announcement still counts
    std::uint32_t as_id = 0;  // the id by which it was announced; 0 if in full
    Slot earlier = kNone;
    Slot later = kNone;
  };

  InFlight() = default;
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  // Adds a submission. Its name must not be in flight; `interned` is borrowed until it is removed.
  Slot add(CallId call_id, const InternedSignature& interned, const SubmissionContext& context);
  void remove(Slot slot);

  // Finds the submission of this name; kNone if there is none.
  Slot find(std::uint64_t name_digest, std::string_view name) const;
  Slot find(const InternedSignature& interned) const {
    return find(interned.name_digest, interned.signature.name);
  }
  Call& operator[](Slot slot) { return calls_[slot]; }
  const Call& operator[](Slot slot) const { return calls_[slot]; }

  // The submissions in order: first(), then `later` of each; kNone after the last.
  Slot first() const { return first_; }
  std::size_t size() const { return size_; }

 private:
  struct Place {
    std::uint64_t name_digest = 0;
    Slot slot = kNone;
  };

  std::size_t home_of(std::uint64_t name_digest) const {
    return name_digest & (places_.size() - 1);
  }
  std::size_t after(std::size_t place) const { return (place + 1) & (places_.size() - 1); }
  void insert_place(std::uint64_t name_digest, Slot slot);
  void erase_place(Slot slot);
  void grow();

  std::vector<Call> calls_;
  std::vector<Slot> unused_;
  Slot first_ = kNone;
  Slot last_ = kNone;
  std::size_t size_ = 0;
  // Open addressing with linear probing. The size is a power of two, and at most half of the places
  // are taken.
  std::vector<Place> places_ = std::vector<Place>(64);
};

}  // namespace farandole
