// WireWatch: reads the messages of one group and checks the rules of the format: the limits for the
// size of a message and for the name table. A member that knows the id of a signature must not
// announce the signature in full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "base/signature.h"
#include "envelope.h"

namespace farandole::sim {

class WireWatch {
 public:
  explicit WireWatch(std::size_t names_max) : names_max_(names_max) {}

  // Call check_sent() when a message is sent, and check_arrived() when it has arrived. Both return
  // the text of the problem, or an empty text.
  std::string check_sent(const Envelope& envelope);
  std::string check_arrived(const Envelope& envelope);

 private:
  using Names = std::map<std::uint32_t, Signature>;  // the ids that a member knows

  std::size_t names_max_;
  std::map<int, Names> names_;  // by member
};

// The contents of a message, in words.
std::string message_text(const Bytes& message);

}  // namespace farandole::sim
