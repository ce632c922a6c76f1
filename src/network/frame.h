// Frame: the unit in which ranks on different hosts exchange data. A header of fixed size says what
// the frame is and how many bytes of payload follow. This file parses only headers: the payload
// goes directly from the connection to its target memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "farandole/status.h"

namespace farandole {

enum class FrameType : std::uint8_t {
  kControl = 1,   // messages of the agreement
  kEnter = 2,     // all members on the sender's host have entered a step
  kData = 3,      // a piece of a tensor
  kStore = 4,     // requests and replies of the Store
  kGroupEnd = 5,  // a group has ended on the sender's host, because a rank has left
  kDeath = 6,     // a rank has died
  kGoodbye = 7,   // the sender leaves and sends no more frames
  kEnvelope = 8,  // a part of a send or receive
};

struct FrameHeader {
  FrameType type = FrameType::kControl;
  std::uint64_t epoch = 0;
  std::uint32_t group = 0;
  std::uint32_t generation = 0;
  std::uint32_t plan = 0;
  std::uint32_t step = 0;
  std::uint64_t sequence = 0;  // counts the frames of one direction of a connection
  std::uint32_t length = 0;    // the number of bytes of the payload
  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

// magic u32 · version u8 · type u8 · flags u16 (0) · epoch u64 · group u32 · generation u32 ·
// plan u32 · step u32 · sequence u64 · length u32, little-endian.
inline constexpr std::size_t kFrameHeaderBytes = 44;
using FrameHeaderBytes = std::array<std::byte, kFrameHeaderBytes>;

// Returns the size of the longest payload of a frame of this type; empty if there is no such type.
std::optional<std::uint32_t> payload_bytes_max(FrameType type);

// `header.length` must not exceed payload_bytes_max() of `header.type`.
FrameHeaderBytes encode_frame_header(const FrameHeader& header);

// Errors: kRebuildGroup if these bytes do not begin a frame of this version, or if the frame has an
// unknown type, flags other than 0, or a payload above the limit of its type. The text names the
// field. The connection must then be closed, because it is unknown where the next frame begins.
Result<FrameHeader> parse_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes);

// Collects a header that arrives in pieces:
//   header.mark_filled(connection.try_receive(header.space()));
//   if (header.complete()) header.take();
class FrameHeaderReader {
 public:
  // Returns the memory for the missing bytes of the header; empty when the header is complete.
  std::span<std::byte> space() { return std::span(bytes_).subspan(count_); }
  void mark_filled(std::size_t count);
  bool complete() const { return count_ == kFrameHeaderBytes; }
  bool has_begun() const { return count_ > 0; }  // whether bytes have arrived since the last take()
  // Parses the complete header and begins the next one. Errors: as parse_frame_header().
  Result<FrameHeader> take();

 private:
  FrameHeaderBytes bytes_{};
  std::size_t count_ = 0;
};

}  // namespace farandole
