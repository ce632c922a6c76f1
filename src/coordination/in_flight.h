// InFlight: what this member has submitted and not completed, in the order of submission. Found by
// name in constant time, and nothing is copied: every step of every training comes through here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "coordination/decision.h"
#include "coordination/moment.h"
#include "coordination/signature.h"

namespace farandole {

class InFlight {
 public:
  // Where a submission is kept; another one may come there when it was removed.
  using Slot = std::uint32_t;
  static constexpr Slot kNone = std::numeric_limits<Slot>::max();

  struct Submission {
    Ticket ticket = 0;
    const KnownSignature* known = nullptr;
    Moment moment;
    bool taken = false;       // into a decision
    bool announced = false;   // and the announcement still counts
    std::uint32_t as_id = 0;  // by which it was announced; 0 if in full
    Slot earlier = kNone;
    Slot later = kNone;
  };

  InFlight() = default;
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  // Its name must not be in flight; `known` is borrowed until it is removed.
  Slot add(Ticket ticket, const KnownSignature& known, const Moment& moment);
  void remove(Slot slot);

  // The one of that name, or kNone.
  Slot find(std::uint64_t name_digest, std::string_view name) const;
  Slot find(const KnownSignature& known) const {
    return find(known.name_digest, known.signature.name);
  }
  Submission& operator[](Slot slot) { return submissions_[slot]; }
  const Submission& operator[](Slot slot) const { return submissions_[slot]; }

  // In the order of submission: first(), then `later` of each, kNone after the last.
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
  // Open addressing with linear probing; their number is a power of two, at most half are taken.
  std::vector<Place> places_ = std::vector<Place>(64);
};

}  // namespace farandole
