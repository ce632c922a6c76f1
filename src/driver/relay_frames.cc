#include "driver/relay_frames.h"

#include <span>

#include "base/bytes.h"
#include "base/format.h"
#include "base/visible_text.h"

namespace farandole {
namespace {

// If bytes are not a frame, the error text shows at most this many of them.
constexpr std::size_t kShownBytesMax = 80;

void append_header(std::string& bytes, RelayFrame::Kind kind, std::uint32_t stream,
                   std::uint32_t count) {
  ByteWriter header;
  header.put(kind);
  header.put(stream);
  header.put(count);
  const Bytes written = header.take();
  bytes.append(reinterpret_cast<const char*>(written.data()), written.size());
}

bool is_possible(const RelayFrame& frame) {
  switch (frame.kind) {
    case RelayFrame::Kind::kData:
      return frame.count > 0 && frame.count <= kRelayPayloadBytesMax;
    case RelayFrame::Kind::kEnd:
      return frame.count == 0;
    case RelayFrame::Kind::kCredit:
      return frame.count > 0;
  }
  return false;
}

}  // namespace

void append_data(std::string& bytes, std::uint32_t stream, std::string_view payload) {
  append_header(bytes, RelayFrame::Kind::kData, stream, static_cast<std::uint32_t>(payload.size()));
  bytes += payload;
}

void append_end(std::string& bytes, std::uint32_t stream) {
  append_header(bytes, RelayFrame::Kind::kEnd, stream, 0);
}

void append_credit(std::string& bytes, std::uint32_t stream, std::uint32_t count) {
  append_header(bytes, RelayFrame::Kind::kCredit, stream, count);
}

void RelayFrameReader::push(std::string_view bytes) {
  bytes_.erase(0, unread_start_);
  unread_start_ = 0;
  bytes_ += bytes;
}

Result<std::optional<RelayFrame>> RelayFrameReader::next() {
  const std::string_view unread = std::string_view(bytes_).substr(unread_start_);
  if (unread.size() < kRelayHeaderBytes) return std::optional<RelayFrame>();
  ByteReader header(std::as_bytes(std::span(unread.data(), kRelayHeaderBytes)));
  RelayFrame frame{.kind = header.get<RelayFrame::Kind>(),
                   .stream = header.get<std::uint32_t>(),
                   .count = header.get<std::uint32_t>()};
  if (!is_possible(frame))
    return Status::stop(
        format_text("the remote host has sent text that is not from Farandole: \"{}\"; start-up "
                    "files of the shell must not write in the background",
                    escape_controls(std::string(unread.substr(0, kShownBytesMax)))));
  if (frame.kind == RelayFrame::Kind::kData) {
    if (unread.size() < kRelayHeaderBytes + frame.count) return std::optional<RelayFrame>();
    frame.payload = unread.substr(kRelayHeaderBytes, frame.count);
  }
  unread_start_ += kRelayHeaderBytes + frame.payload.size();
  return std::optional(frame);
}

}  // namespace farandole
