// Agreement: one member's part in deciding what its group runs next. It takes messages, submissions
// and times, and returns messages and decisions. It uses no socket, thread, clock or shared memory.
//
// Members predict the next step, enter it, and compare its identity ("Life of one allreduce" in
// docs/architecture.md). If all members have entered a step with the same identity, they agree
// without a message. Otherwise they replan: the coordinator (member 0) stops all members, asks each
// member for its progress, and begins the next generation. Steps that all members have entered stay
// valid. The entries of other steps are rolled back, and the calls of these steps are predicted or
// announced again. A group is in one of three modes:
// - queue: the mode at the beginning. Each member predicts that its own oldest submission runs
//   next, or the batch to which that submission belongs.
// - learn: the mode after a misprediction. Followers announce the calls that are ready, and the
//   coordinator decides which one runs next.
// - plan: the coordinator has learned which submissions repeat. It has put them into fragments. A
//   fragment consists of buckets in a fixed order. An edge says which fragment may follow another
//   one. A member predicts the next bucket.
//
// A call that cannot run (Signature::call_error) is never predicted. The member that has submitted
// it raises (asks for a replan) and announces the call. When all members have announced a call of
// this name, the call is rejected on all of them.
//
// A member that has submitted a kJoin counts as having announced every operation that may run
// without its data (allowed_while_joined in operation.h). Other operations are rejected on all
// members, and the error names the joined ranks. When all members have joined, all joins complete
// together. While any member has joined, the group stays in learn mode.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/signature.h"
#include "base/time_point.h"
#include "control/messages.h"
#include "control/submission_context.h"
#include "coordination/agreement_options.h"
#include "coordination/decision.h"
#include "farandole/status.h"

namespace farandole {

class Agreement {
 public:
  // `ranks`: the members' world ranks, ascending, for error texts. `member`: the index of this
  // member among them. `hosts`: the number of each member's host; empty if all members are on one
  // host.
  Agreement(int member, std::vector<int> ranks, const AgreementOptions& options = {},
            const std::vector<int>& hosts = {});
  ~Agreement();
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;

  // Adds a call of this member. `interned` is borrowed until record_completion() is called for a
  // decision with this call id. All calls of a batch must be submitted before next_decision() is
  // called. The signature must be valid, and no call of this name may be in flight on this member.
  // If this member has joined, it must have been released since then. SubmissionTable rejects all
  // calls that break these rules, so such calls never reach this function.
  void submit(CallId call_id, const InternedSignature& interned, const SubmissionContext& context,
              TimePoint now);
  // Takes a message of a peer. Messages of one peer must come in order, each once. Errors: kStop if
  // the bytes are not a valid message; after that, the group must not be used any more.
  Status receive(int from, std::span<const std::byte> message, TimePoint now);
  // Advances the time. If there is a deadline(), the caller must call tick() at that time at the
  // latest.
  void tick(TimePoint now);
  std::optional<TimePoint> deadline() const;

  // Returns the next message to send; empty if there is none. A receiver must get its messages in
  // this order. To send few messages, first tell the other functions everything that has happened,
  // and then call this function until its result is empty.
  std::optional<OutgoingMessage> next_message();

  // Returns the decision that this member must enter now. Returns null if there is no such
  // decision, or if the last decision has not been completed or rolled back yet. A returned
  // decision counts as entered. Agreement owns it; it is valid until record_completion() or a
  // rollback.
  const Decision* next_decision();
  // Call it when all members have entered the decision with the same identity, and this member has
  // done what the decision says. Afterwards, the decision's call ids are no longer in flight.
  void record_completion();
  // Call it when all members have entered the step number of the decision, but not all of them with
  // the same identity.
  void record_misprediction();
  // Returns true once after each rollback of the entered decision. The caller must then forget that
  // decision. Its call ids are still in flight, and later decisions will contain them again.
  bool take_rollback();

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace farandole
