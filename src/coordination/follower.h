// Follower: one member's part in agreeing. It predicts what comes next, takes part in replans, and
// while it learns, announces what its user submits and turns the coordinator's stream into
// decisions. Every member has one, the coordinator's too.
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
#include "coordination/agreement_options.h"
#include "coordination/decision.h"
#include "coordination/fusion_watch.h"
#include "coordination/grace.h"
#include "coordination/in_flight.h"
#include "coordination/messages.h"
#include "coordination/name_table.h"
#include "coordination/plan.h"
#include "coordination/plan_walk.h"
#include "farandole/status.h"

namespace farandole {

class Follower {
 public:
  // `rank` is our rank in the world, for texts.
  Follower(int rank, const AgreementOptions& options);

  // Raises a replan when the queue brings again and again what could be fused. On one member only.
  void expect_fusion() { fusion_watch_.emplace(options_.fusion_bytes); }

  // As in Agreement; a message comes from the coordinator, and goes to it.
  Status submit(Ticket ticket, const KnownSignature& known, const Moment& moment, TimePoint now);
  Status receive(std::span<const std::byte> message, TimePoint now);
  void look(TimePoint now);
  std::optional<TimePoint> deadline();
  std::optional<Bytes> next_message() { return messages_.take(); }
  bool has_message() const { return !messages_.empty(); }
  const Decision* next_decision();
  void completed();
  void surprised() { raise({}); }
  bool take_withdrawal() { return std::exchange(withdrawn_, false); }

 private:
  enum class Mode { kQueue, kLearn, kPlan };
  struct Issued {
    Decision decision;
    InFlight::Slot slot = InFlight::kNone;
  };
  struct Join {
    Ticket ticket;
    AnnounceJoin announcement;
    bool released = false;  // in the stream; over when that was completed
  };

  Status problem_of_submission(const KnownSignature& known) const;
  void announce(InFlight::Slot slot);
  void announce_what_is_not_planned();
  bool is_stuck();
  void raise(Raise item);
  Status apply(const Define& item);
  Status apply(const Forget& item);
  Status apply(const Issue& item);
  Status apply(const Refuse& item);
  Status apply(const ReleaseAll& item);
  Status apply(const Stop& item);
  Status apply(const Answer& item);
  Status apply(const Follow& item);
  Status apply(const AddBucket& item) { return apply_edit(item); }
  Status apply(const DropAtom& item) { return apply_edit(item); }
  Status apply(const AddSuccession& item) { return apply_edit(item); }
  template <class Edit>
  Status apply_edit(const Edit& edit);
  Status problem_of_answer(const Answer& item) const;
  InFlight::Slot announced(std::uint64_t name_digest, const std::string& name) const;
  Status expect_next(std::uint32_t generation, std::uint32_t sequence);
  void withdraw();
  void take_back(const Decision& decision, std::span<const InFlight::Slot> slots);
  bool enter_issued();
  bool enter_from_queue();
  bool enter_planned();
  void begin_step();
  void add_to_step(InFlight::Slot slot);
  void note_entered(InFlight::Slot slot);
  void watch_for_fusion();
  Turn next_turn() const { return {generation_, completed_ + 1}; }

  int rank_;
  AgreementOptions options_;
  Mode mode_ = Mode::kQueue;
  std::uint32_t generation_ = 1;
  bool stopped_ = false;
  bool raised_ = false;  // in this generation

  std::uint32_t completed_ = 0;  // sequence
  bool entered_ = false;
  bool withdrawn_ = false;             // and nobody has asked yet
  Decision decision_;                  // entered, or what was there before
  std::vector<InFlight::Slot> slots_;  // of what is entered

  InFlight in_flight_;
  std::size_t planned_queued_ = 0;  // how many are in the plan and not entered, while we follow it
  std::uint32_t quiet_points_last_ = 0;  // the most of what was entered
  std::uint32_t waits_last_ = 0;         // of the last submission
  std::optional<Join> join_;
  NameTable names_;
  Plan plan_;
  PlanWalk walk_;
  Grace grace_;
  std::optional<FusionWatch> fusion_watch_;
  std::uint32_t id_defined_last_ = 0;
  std::uint32_t sequence_issued_last_ = 0;
  std::deque<Issued> issued_;  // not entered yet
  MessagePacker messages_;
};

}  // namespace farandole
