// PlanWalk: the position of a member in the plan, and what comes next: the next bucket of the
// current atom. At its end, it is the first known successor whose first bucket is ready.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordination/in_flight.h"
#include "coordination/messages.h"
#include "coordination/plan.h"

namespace farandole {

class PlanWalk {
 public:
  // All arguments must outlive this object. `quiet_points` is that of the last entered submission.
  PlanWalk(const Plan& plan, const InFlight& in_flight, const std::uint32_t& quiet_points)
      : plan_(plan), in_flight_(in_flight), quiet_points_(quiet_points) {}

  // Moves to the beginning of this atom; null means nowhere. The atom must stay in the plan while
  // we are in it.
  void go_to(const Plan::Atom* atom);
  // The next bucket if all of it is queued here; otherwise null.
  const Plan::Bucket* next();
  // The submissions of the bucket that next() has returned, in its order.
  const std::vector<InFlight::Slot>& slots() const { return slots_; }
  // Enters the bucket that next() has returned.
  void enter();
  // Drops what next() remembers. Call it after submissions were withdrawn or removed.
  void forget_what_is_ready() { looked_at_ = nullptr; }

  // How many atoms have been entered completely.
  std::uint32_t atoms_run() const { return atoms_run_; }
  void count_from_zero() { atoms_run_ = 0; }

  // What to raise if a planned submission is queued, but next() was null for too long. Leaves out
  // how far the group has come, which the caller adds.
  Raise describe_wait() const;

 private:
  Where place() const;
  bool is_ready(const Plan::Bucket& bucket);
  InFlight::Slot slot_of(const KnownSignature& known) const;
  std::vector<std::uint32_t> queued_of(const Plan::Atom& atom, std::size_t from,
                                       std::size_t to) const;
  std::vector<std::uint32_t> queued_atoms() const;

  const Plan& plan_;
  const InFlight& in_flight_;
  const std::uint32_t& quiet_points_;
  const Plan::Atom* atom_ = nullptr;
  // index of the next bucket in the atom; the number of buckets means its end
  std::size_t bucket_ = 0;
  std::uint32_t atoms_run_ = 0;

  const Plan::Atom* next_atom_ = nullptr;  // the atom of the bucket that next() has returned
  const Plan::Bucket* looked_at_ = nullptr;
  std::vector<InFlight::Slot> slots_;  // the first members of that bucket, which are ready
};

}  // namespace farandole
