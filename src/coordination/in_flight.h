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
#include "coordination/moment.h"

namespace farandole {

class InFlight {
 public:
  // The place of a submission. After it was removed, another submission may use it.
  using Slot = std::uint32_t;
  static constexpr Slot kNone = std::numeric_limits<Slot>::max();

  struct Submission {
    Ticket ticket = 0;
    const KnownSignature* known = nullptr;
    Moment moment;
    bool taken = false;       // a decision contains it
    bool announced = false;   // it was announced, and the announcement still counts
    std::uint32_t as_id = 0;  // the id by which it was announced; 0 if in full
    Slot earlier = kNone;
    Slot later = kNone;
  };

  InFlight() = default;
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  // Adds a submission. Its name must not be in flight; `known` is borrowed until it is removed.
  Slot add(Ticket ticket, const KnownSignature& known, const Moment& moment);
  void remove(Slot slot);

  // Finds the submission of this name; kNone if there is none.
  Slot find(std::uint64_t name_digest, std::string_view name) const;
  Slot find(const KnownSignature& known) const {
    return find(known.name_digest, known.signature.name);
  }
  Submission& operator[](Slot slot) { return submissions_[slot]; }
  const Submission& operator[](Slot slot) const { return submissions_[slot]; }

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
  void take_place(std::uint64_t name_digest, Slot slot);
  void leave_place(Slot slot);
  void grow();

  std::vector<Submission> submissions_;
  std::vector<Slot> unused_;
  Slot first_ = kNone;
  Slot last_ = kNone;
  std::size_t size_ = 0;
  // Open addressing with linear probing. The size is a power of two, and at most half of the places
  // are taken.
  std::vector<Place> places_ = std::vector<Place>(64);
};

}  // namespace farandole
