// The frames that two relays exchange (see stream_relay.h). A frame is a header of nine bytes and,
// for kData, a payload: kind u8, stream u32, count u32 (little-endian).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "farandole/status.h"

namespace farandole {

inline constexpr std::size_t kRelayHeaderBytes = 9;
inline constexpr std::uint32_t kRelayPayloadBytesMax = 1 << 16;

struct RelayFrame {
  enum class Kind : std::uint8_t {
    kData,    // `count` bytes of the stream follow
    kEnd,     // the stream has no more bytes
    kCredit,  // the receiver of the stream has room for `count` more bytes
  };
  Kind kind = Kind::kData;
  std::uint32_t stream = 0;
  std::uint32_t count = 0;
  std::string_view payload{};

  friend bool operator==(const RelayFrame&, const RelayFrame&) = default;
};

void append_data(std::string& bytes, std::uint32_t stream, std::string_view payload);
void append_end(std::string& bytes, std::uint32_t stream);
void append_credit(std::string& bytes, std::uint32_t stream, std::uint32_t count);

// Finds the frames in bytes that arrive in pieces of any size.
class RelayFrameReader {
 public:
  void push(std::string_view bytes);
  // Returns the next complete frame; empty if more bytes are needed. The payload is valid until the
  // next push(). Errors: kStop if the bytes are not those of a relay.
  Result<std::optional<RelayFrame>> next();

 private:
  std::string bytes_;
  std::size_t unread_start_ = 0;
};

}  // namespace farandole
