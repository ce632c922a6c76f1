// PlanWalk: where a member is in the plan, and what comes next there: the next bucket of the atom
// in which it is, and at its end the first known successor whose first bucket is ready.
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
  // All outlive this. `quiet_points` is of what was entered last.
  PlanWalk(const Plan& plan, const InFlight& in_flight, const std::uint32_t& quiet_points)
      : plan_(plan), in_flight_(in_flight), quiet_points_(quiet_points) {}

  // From the beginning of this atom, null for nowhere. It must stay in the plan as long as we are
  // there.
  void go_to(const Plan::Atom* atom);
  // The next bucket if all of it is queued here, else null.
  const Plan::Bucket* next();
  // Of the bucket that next() has returned, and in its order.
  const std::vector<InFlight::Slot>& slots() const { return slots_; }
  // We enter what next() has returned.
  void enter();
  // What was submitted and completed is not what it was: look at everything again.
  void forget_what_is_ready() { looked_at_ = nullptr; }

  // How many atoms have been entered to their end.
  std::uint32_t atoms_run() const { return atoms_run_; }
  void count_from_zero() { atoms_run_ = 0; }

  // What to raise when something planned is queued, and next() is null for too long; all but where
  // the group is.
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
  std::size_t bucket_ = 0;  // of the atom, the next one; all behind us: at its end
  std::uint32_t atoms_run_ = 0;

  const Plan::Atom* next_atom_ = nullptr;  // of what next() has returned
  const Plan::Bucket* looked_at_ = nullptr;
  std::vector<InFlight::Slot> slots_;  // of its first ones, which are ready
};

}  // namespace farandole
