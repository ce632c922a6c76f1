// Envelopes: the offers, answers and parts of messages that two ranks send each other, as bytes.
//
// The sender offers a message. When a receive matches, the receiver accepts or refuses the message.
// A small message may be sent early, before a receive matches; then its data is inside the offer.
// The data of other messages follows after the acceptance.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>

#include "base/bytes.h"
#include "farandole/engine.h"
#include "farandole/status.h"

namespace farandole {

// Only messages of at most this size are sent early.
inline constexpr std::size_t kInlineBytesMax = 8 * 1024;

// `id` is the number of the offer: 1 for the first offer from this sender to this receiver.
struct Offer {
  std::uint64_t id = 0;
  GroupId group = kWorld;
  std::string channel;
  std::int32_t tag = 0;
  DType dtype = DType::kUInt8;
  std::uint64_t bytes = 0;  // the size of the message
  std::string title;        // the sender's call, for error texts
  std::string call_error;   // not empty if the sender's call is invalid
  // The whole message; empty if the message is larger than kInlineBytesMax or is not sent early.
  std::string data;

  bool is_complete() const { return data.size() == bytes; }
};

// The receiver has a receive for the message.
struct Acceptance {
  std::uint64_t id = 0;
};

// The receiver has a receive for the message, but dtype or size differ, or the receive is invalid.
struct Refusal {
  std::uint64_t id = 0;
  std::string text;
};

// The header of the next part of an accepted message. In the ring, the part follows the header.
struct DataHeader {
  std::uint64_t id = 0;
};

using Envelope = std::variant<Offer, Acceptance, Refusal, DataHeader>;

struct DecodedEnvelope {
  Envelope envelope;
  std::span<const std::byte> data;  // the part after a DataHeader; refers to the decoded bytes
};

Bytes encode(const Envelope& envelope);
// Errors: kStop if the bytes are not an envelope.
Result<DecodedEnvelope> decode_envelope(std::span<const std::byte> bytes);

}  // namespace farandole
