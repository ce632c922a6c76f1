// PlanWalk: the position of a member in the plan. It finds the bucket that comes next: the next one
// of the current fragment or, at the end of the fragment, the first bucket of a successor. If the
// first buckets of several successors are ready, it takes the successor that was learned first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "control/messages.h"
#include "coordination/in_flight.h"
#include "coordination/plan.h"

namespace farandole {

class PlanWalk {
 public:
  // All arguments must outlive this object, which reads them again later. `quiescent_points` is the
  // highest SubmissionContext::quiescent_points that this member has entered.
  PlanWalk(const Plan& plan, const InFlight& in_flight, const std::uint32_t& quiescent_points)
      : plan_(plan), in_flight_(in_flight), quiescent_points_(quiescent_points) {}

  // Moves to the beginning of this fragment; null ends the walk. The fragment must stay in the plan
  // while the walk is in it.
  void go_to(const Plan::Fragment* fragment);
  // Returns the next bucket if all its submissions are in flight here; otherwise null.
  const Plan::Bucket* next_bucket();
  // The submissions of the bucket that next_bucket() has returned, in the order of the bucket.
  const std::vector<InFlight::Slot>& slots() const { return slots_; }
  // Enters the bucket that next_bucket() has returned.
  void enter();

  // How many fragments have been entered completely.
  std::uint32_t fragments_run() const { return fragments_run_; }
  void reset_fragments_run() { fragments_run_ = 0; }

  // Returns the raise to send if a planned submission is in flight, but next_bucket() has been null
  // for too long. The caller adds the generation and the completed sequence.
  Raise raise_for_wait() const;

 private:
  EdgeKind wanted_edge_kind() const;
  bool is_ready(const Plan::Bucket& bucket);
  InFlight::Slot slot_of(const InternedSignature& interned) const;
  std::vector<std::uint32_t> queued_ids(const Plan::Fragment& fragment, std::size_t bucket) const;
  std::vector<std::uint32_t> queued_fragments() const;

  const Plan& plan_;
  const InFlight& in_flight_;
  const std::uint32_t& quiescent_points_;
  const Plan::Fragment* fragment_ = nullptr;
  // index of the next bucket in the fragment; at the end of the fragment, the number of its buckets
  std::size_t bucket_ = 0;
  std::uint32_t fragments_run_ = 0;

  const Plan::Fragment* next_fragment_ = nullptr;  // the fragment of the next bucket
  const Plan::Bucket* bucket_checked_ = nullptr;   // the last argument of is_ready()
  std::vector<InFlight::Slot> slots_;              // ready submissions of bucket_checked_ so far
};

}  // namespace farandole
