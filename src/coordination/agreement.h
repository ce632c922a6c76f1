// Agreement: one member's part in deciding what its group runs next. Pure: messages and
// submissions go in, messages and decisions come out; no socket, thread, clock or shared memory.
// Learn mode of design §3: followers announce what is ready, the coordinator (member 0) matches by
// name, decides the order and answers with steps. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "coordination/signature.h"
#include "farandole/status.h"

namespace farandole {

// Names are bounded so that every message fits kMessageBytesMax.
inline constexpr std::size_t kNameBytesMax = 4096;
inline constexpr std::size_t kDimensionsMax = 64;
inline constexpr std::size_t kMessageBytesMax = 16384;

// "All members run this next." Sequence numbers start at 1 and have no gaps within a group.
struct Step {
  std::uint32_t generation;
  std::uint32_t sequence;
  std::uint32_t id;  // of the signature; what the members compare when they enter
  std::string name;
};

// "This submission cannot run": kFixCall, the same text on every member.
struct Refusal {
  std::string name;
  Status status;
};

using Decision = std::variant<Step, Refusal>;

struct OutgoingMessage {
  int to;  // member
  Bytes bytes;  // at most kMessageBytesMax
};

class Agreement {
 public:
  // `ranks` are the world ranks of the members, ascending; used in texts. `member` is our index.
  Agreement(int member, std::vector<int> ranks);
  ~Agreement();
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;

  // Our user is ready for this. Errors: kFixCall when the name is in flight here or out of bounds.
  Status submit(Signature signature);
  // A message from a peer; messages of one peer arrive in order, once. Errors: kStop when the
  // bytes are not a message of ours.
  Status receive(int from, std::span<const std::byte> message);

  // What is to be sent, in order per receiver. Empty when there is nothing.
  std::optional<OutgoingMessage> next_message();
  // What was decided, in the group's order. A decided name is no longer in flight here.
  std::optional<Decision> next_decision();

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace farandole
