// Agreement: one member's part in deciding what its group runs next. Pure: messages, submissions
// and times go in, messages and decisions come out; no socket, thread, clock or shared memory.
//
// Members predict the next step, enter it and compare ("The life of one allreduce" in
// docs/architecture.md). If all members have entered a step with the same identity, they agree, and
// no message was sent. Otherwise they replan: the coordinator (member 0) stops all members, learns
// how far each has come, and begins the next generation. What all have entered stays; the rest is
// rolled back and is predicted or announced again. A group is in one of three modes:
// - queue: the mode at the beginning. A member predicts its own oldest submission, or the batch
// that
//   it belongs to.
// - learn: after a misprediction. Followers announce what is ready, and the coordinator decides.
// - plan: the coordinator has learned what repeats as fragments (sets of submissions, in an order,
//   in buckets) and the edges between them. A member predicts the next bucket.
// A call that cannot run (Signature::call_error) is never predicted. Its member raises a replan and
// announces it. When all members have announced the name, the call is rejected on all. A member
// that has submitted a kJoin counts as having announced every operation that runs joined
// (runs_joined in operation.h). Other operations are rejected on all members, and the error names
// the joined ranks. When all have joined, all joins complete at once. While any member has joined,
// the group stays in learn mode.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/signature.h"
#include "base/time_point.h"
#include "coordination/agreement_options.h"
#include "coordination/decision.h"
#include "coordination/messages.h"
#include "coordination/submission_context.h"
#include "farandole/status.h"

namespace farandole {

class Agreement {
 public:
  // `ranks` are the world ranks of the members, ascending, for error texts. `member` is our index.
  Agreement(int member, std::vector<int> ranks, const AgreementOptions& options = {});
  ~Agreement();
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;

  // Adds a call of our user. `interned` is borrowed until a decision with this call id was
  // completed(). All calls of a batch must be submitted before next_decision() is called again. The
  // signature must be valid, no call of this name may be in flight on this member, and this member
  // must not have joined, unless it was released: SubmissionTable rejects such calls.
  void submit(CallId call_id, const InternedSignature& interned, const SubmissionContext& context,
              TimePoint now);
  // Takes a message of a peer. Messages of one peer must come in order, each once. Errors: kStop if
  // the bytes are not a valid message; the group must not be used any more then.
  Status receive(int from, std::span<const std::byte> message, TimePoint now);
  // Advances the time. Must be called at deadline() at the latest.
  void tick(TimePoint now);
  std::optional<TimePoint> deadline() const;

  // The next message to send, in order per receiver; empty if there is none. It packs what has come
  // together, so call it until it is empty, after each round of the other calls.
  std::optional<OutgoingMessage> next_message();

  // What this member must enter now. Null if there is nothing, or if the last decision is neither
  // completed nor rolled back. A returned decision counts as entered. Agreement owns it; it is
  // valid until completed() or a rollback.
  const Decision* next_decision();
  // All members have entered it with the same identity, and it is done on this member. Its call ids
  // are no longer in flight.
  void completed();
  // All members have entered the step number, but not with the same identity.
  void mispredicted();
  // True once if the last entered decision was rolled back: the caller must forget that entry. Its
  // call ids are still in flight, and later decisions will contain them again.
  bool take_rollback();

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace farandole
