// Agreement: one member's part in deciding what its group runs next. Pure: messages and
// submissions go in, messages and decisions come out; no socket, thread, clock or shared memory.
// Learn mode of design §3: followers announce what is ready, the coordinator (member 0) matches by
// name, decides the order and answers with steps. One thread at a time.
// Join: a member that has submitted a kJoin counts as having announced everything that runs_joined
// (operation.h); what does not run joined is refused on all, naming the joined ranks. When all have
// joined, all are released at once. The name of a join is the submitter's own business.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "coordination/decision.h"
#include "coordination/messages.h"
#include "coordination/signature.h"
#include "farandole/status.h"

namespace farandole {

// How many names of a group have an id at the same time; the least recent one makes room.
inline constexpr std::size_t kNamesMax = 65536;

class Agreement {
 public:
  // `ranks` are the world ranks of the members, ascending; used in texts. `member` is our index.
  Agreement(int member, std::vector<int> ranks, std::size_t names_max = kNamesMax);
  ~Agreement();
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;

  // Our user is ready for this. Errors: kFixCall when the name is in flight here or out of bounds,
  // or this member has joined and was not released yet.
  Status submit(Signature signature);
  // A message from a peer; messages of one peer arrive in order, once. Errors: kStop when the
  // bytes are not a message of ours; the group is over then.
  Status receive(int from, std::span<const std::byte> message);

  // What is to be sent, in order per receiver. Empty when there is nothing. Both of these pack what
  // came together, so ask after a round of submit() and receive(), until both are empty.
  std::optional<OutgoingMessage> next_message();
  // What was decided, in the group's order. A decided name is no longer in flight here, once its
  // decision was taken.
  std::optional<Decision> next_decision();

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace farandole
