// PlanWalk: the position of a member in the plan, and what comes next: the next bucket of the
// current fragment. At its end, it is the first known successor whose first bucket is ready.
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
  // All arguments must outlive this object. `quiescent_points` is that of the last entered
  // submission.
  PlanWalk(const Plan& plan, const InFlight& in_flight, const std::uint32_t& quiescent_points)
      : plan_(plan), in_flight_(in_flight), quiescent_points_(quiescent_points) {}

  // Moves to the beginning of this fragment; null means nowhere. The fragment must stay in the plan
  // while we are in it.
  void go_to(const Plan::Fragment* fragment);
  // The next bucket if all of it is queued here; otherwise null.
  const Plan::Bucket* next();
  // The submissions of the bucket that next() has returned, in its order.
  const std::vector<InFlight::Slot>& slots() const { return slots_; }
  // Enters the bucket that next() has returned.
  void enter();
  // Drops what next() remembers. Call it after submissions were rolled back or removed.
  void forget_what_is_ready() { looked_at_ = nullptr; }

  // How many fragments have been entered completely.
  std::uint32_t fragments_run() const { return fragments_run_; }
  void count_from_zero() { fragments_run_ = 0; }

  // What to raise if a planned submission is queued, but next() was null for too long. Leaves out
  // how far the group has come, which the caller adds.
  Raise describe_wait() const;

 private:
  Where place() const;
  bool is_ready(const Plan::Bucket& bucket);
  InFlight::Slot slot_of(const InternedSignature& interned) const;
  std::vector<std::uint32_t> queued_of(const Plan::Fragment& fragment, std::size_t bucket) const;
  std::vector<std::uint32_t> queued_fragments() const;

  const Plan& plan_;
  const InFlight& in_flight_;
  const std::uint32_t& quiescent_points_;
  const Plan::Fragment* fragment_ = nullptr;
  // index of the next bucket in the fragment; the number of buckets means its end
  std::size_t bucket_ = 0;
  std::uint32_t fragments_run_ = 0;

  const Plan::Fragment* next_fragment_ =
      nullptr;  // the fragment of the bucket that next() has returned
  const Plan::Bucket* looked_at_ = nullptr;
  std::vector<InFlight::Slot> slots_;  // the first members of that bucket, which are ready
};

}  // namespace farandole
