// Agreement: one member's part in deciding what its group runs next. Pure: messages, submissions
// and times go in, messages and decisions come out; no socket, thread, clock or shared memory.
//
// Predict, enter, verify (design §3). A member enters what it thinks comes next. If all members
// have entered a turn with the same identity, that was the agreement, and no message was sent. Else
// they replan: the coordinator (member 0) stops all, learns how far everybody is, and answers with
// the next generation; what was not entered by all is withdrawn and comes again.
// - queue: at first, what comes next is the oldest submission of our own, or the batch it is in.
// - learn: after a surprise followers announce what is ready, and the coordinator decides.
// - plan: what was seen to repeat is known as atoms (sets of submissions, in an order, in buckets)
//   and the successions between them; what comes next is the next bucket.
// Fault: a submission that cannot run (base/signature.h) is never predicted. Its member raises,
// announces it, and when all have announced the name it is refused on all.
// Join: a member that has submitted a kJoin counts as having announced everything that runs_joined
// (operation.h); what does not run joined is refused on all, naming the joined ranks. When all have
// joined, all are released at once. As long as anyone has joined, the group learns.
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
#include "coordination/moment.h"
#include "farandole/status.h"

namespace farandole {

class Agreement {
 public:
  // `ranks` are the world ranks of the members, ascending; used in texts. `member` is our index.
  Agreement(int member, std::vector<int> ranks, const AgreementOptions& options = {});
  ~Agreement();
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;

  // Our user is ready for this. `known` is borrowed until the ticket comes back in a decision that
  // was completed(). All of a batch is submitted before next_decision() is asked again. Errors:
  // kFixCall when the name is in flight here or out of bounds, or this member has joined and was
  // not released yet.
  Status submit(Ticket ticket, const KnownSignature& known, const Moment& moment, TimePoint now);
  // A message from a peer; messages of one peer arrive in order, once. Errors: kStop when the
  // bytes are not a message of ours; the group is over then.
  Status receive(int from, std::span<const std::byte> message, TimePoint now);
  // Time passes. Needed at deadline() at the latest.
  void look(TimePoint now);
  std::optional<TimePoint> deadline() const;

  // What is to be sent, in order per receiver. Empty when there is nothing. This packs what came
  // together, so ask after a round of the calls above and below, until it is empty.
  std::optional<OutgoingMessage> next_message();

  // What this member is to enter now; null when nothing is, or what it entered is neither completed
  // nor withdrawn. From here on it counts as entered. Ours until completed() or a withdrawal.
  const Decision* next_decision();
  // All members have entered it alike, and it is done here. Its tickets are no longer in flight.
  void completed();
  // All members have entered that turn, and not alike.
  void surprised();
  // Whether what was entered last has been withdrawn (true once): forget that entry. Its tickets
  // are in flight as before and come again.
  bool take_withdrawal();

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace farandole
