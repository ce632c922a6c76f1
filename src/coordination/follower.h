// Follower: one member's part in the agreement. It predicts the next step and takes part in
// replans. In learn mode it announces the submissions of its program and turns the coordinator's
// stream into decisions. Every member has a follower, even the member with the coordinator.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/signature.h"
#include "base/time_point.h"
#include "control/messages.h"
#include "coordination/agreement_options.h"
#include "coordination/decision.h"
#include "coordination/fusion_watch.h"
#include "coordination/grace.h"
#include "coordination/in_flight.h"
#include "coordination/name_table.h"
#include "coordination/plan.h"
#include "coordination/plan_walk.h"
#include "farandole/status.h"

namespace farandole {

class Follower {
 public:
  // `rank` is this member's rank in the world, for error texts.
  Follower(int rank, const AgreementOptions& options);

  // After this call, this member raises a replan in queue mode if repeated calls could be fused.
  // Call it on one member only.
  void enable_fusion_watch() { fusion_watch_.emplace(options_.fusion_bytes); }

  // A function that has the same name as a function of Agreement does the same. All messages are
  // from or to the coordinator.
  void submit(CallId call_id, const InternedSignature& interned, const SubmissionContext& context,
              TimePoint now);
  Status receive(std::span<const std::byte> message, TimePoint now);
  void tick(TimePoint now);
  std::optional<TimePoint> deadline();
  // Returns the next announcement to send to the coordinator; empty if there is none.
  std::optional<Announcement> next_announcement();
  const Decision* next_decision();
  void record_completion();
  void record_misprediction() { raise({}); }
  bool take_rollback() { return std::exchange(rolled_back_, false); }

 private:
  enum class Mode { kQueue, kLearn, kPlan };
  struct IssuedDecision {
    Decision decision;
    InFlight::Slot slot = InFlight::kNone;
  };
  struct Join {
    CallId call_id;
    AnnounceJoin announcement;
    bool released = false;  // the release has arrived, and no replan has taken it back
  };

  void announce(InFlight::Slot slot);
  void announce_unplanned();
  bool is_stuck();
  void raise(Raise item);
  Status apply(const Define& item);
  Status apply(const Forget& item);
  Status apply(const Issue& item);
  Status apply(const Reject& item);
  Status apply(const ReleaseAll& item);
  Status apply(const Stop& item);
  Status apply(const Answer& item);
  Status apply(const Follow& item);
  Status apply(const AddBucket& item) { return apply_edit(item); }
  Status apply(const DropFragment& item) { return apply_edit(item); }
  Status apply(const AddEdge& item) { return apply_edit(item); }
  template <class Edit>
  Status apply_edit(const Edit& edit);
  Status check_answer(const Answer& item) const;
  InFlight::Slot find_announced(std::uint64_t name_digest, const std::string& name) const;
  Status check_and_count_decision(std::uint32_t generation, std::uint32_t sequence);
  void roll_back();
  void take_back(const Decision& decision, std::span<const InFlight::Slot> slots);
  bool try_enter_issued();
  bool try_enter_from_queue();
  bool try_enter_planned();
  void begin_step();
  void add_to_step(InFlight::Slot slot);
  void record_entry(InFlight::Slot slot);
  std::uint64_t identity_with_unnamed_numbers(std::uint64_t identity) const;
  void watch_for_fusion();
  StepNumber next_step_number() const { return {generation_, completed_ + 1}; }

  int rank_;
  AgreementOptions options_;
  Mode mode_ = Mode::kQueue;
  std::uint32_t generation_ = 1;
  bool stopped_ = false;
  bool raised_ = false;  // whether this member has raised in this generation

  std::uint32_t completed_ = 0;        // sequence of the last completed decision
  bool entered_ = false;               // whether decision_ is entered and not completed
  bool rolled_back_ = false;           // stays true until take_rollback() is called
  Decision decision_;                  // the last decision that was entered
  std::vector<InFlight::Slot> slots_;  // the submissions of the entered decision

  InFlight in_flight_;
  // in plan mode: how many submissions in flight are planned and not entered
  std::size_t planned_queued_ = 0;
  std::uint32_t quiescent_points_last_ = 0;  // highest `quiescent_points` of an entered submission
  std::uint32_t waits_last_ = 0;             // `waits` of the last submission
  std::optional<Join> join_;
  std::uint32_t calls_since_release_ = 0;  // for AnnounceJoin::calls
  NameTable names_;
  Plan plan_;
  PlanWalk walk_;
  Grace grace_;
  std::optional<FusionWatch> fusion_watch_;
  std::uint32_t id_defined_last_ = 0;
  std::uint32_t sequence_issued_last_ = 0;
  std::deque<IssuedDecision> issued_decisions_;  // decisions that were not entered yet
  std::deque<Announcement> announcements_;       // announcements that were not sent yet
};

}  // namespace farandole
