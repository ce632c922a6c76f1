// The messages between StoreClient and StoreServer. Every request except a cancel gets exactly one
// reply, which has the request's number. A cancel makes the server answer the pending wait without
// further delay. Descriptors are sent together with the bytes, as ancillary data.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "farandole/status.h"

namespace farandole {

enum class StoreRequestKind : std::uint8_t { kSet, kWait, kAdd, kRemove, kCancel, kClock };
inline constexpr std::uint8_t kStoreRequestKindCount = 6;

struct StoreRequest {
  StoreRequestKind kind = StoreRequestKind::kWait;
  std::uint64_t number = 0;
  std::vector<std::string> keys;  // one key; kWait and kRemove: one or more keys; kClock: unused
  std::string end_key;            // kWait: the key that also ends the wait
  std::int64_t delta = 0;         // kAdd
  Bytes value;                    // kSet

  Bytes encode() const;
  // Empty if the bytes are not a request.
  static std::optional<StoreRequest> decode(std::span<const std::byte> bytes);
};

struct StoreReplyValue {
  Bytes bytes;
  std::uint32_t descriptors = 0;  // how many of the message's descriptors belong to this value

  bool operator==(const StoreReplyValue&) const = default;
};

struct StoreReply {
  std::uint64_t number = 0;
  Status status;
  std::int64_t sum = 0;  // result of kAdd; kClock: the time in nanoseconds
  // Result of kWait: as many values as fit into one message, beginning with the first key. If a key
  // does not exist, its value is empty.
  std::vector<std::optional<StoreReplyValue>> values;

  Bytes encode() const;
  static std::optional<StoreReply> decode(std::span<const std::byte> bytes);
};

}  // namespace farandole
