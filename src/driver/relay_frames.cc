#include "driver/relay_frames.h"

#include <cstring>

#include "base/format.h"
#include "base/visible_text.h"

namespace farandole {
namespace {

constexpr std::size_t kShownBytes = 80;  // of bytes that are not a frame

void append_header(std::string& bytes, RelayFrame::Kind kind, std::uint32_t stream,
                   std::uint32_t count) {
  const auto at = bytes.size();
  bytes.resize(at + kRelayHeaderBytes);
  bytes[at] = static_cast<char>(kind);
  std::memcpy(bytes.data() + at + 1, &stream, sizeof(stream));
  std::memcpy(bytes.data() + at + 5, &count, sizeof(count));
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
  bytes_.erase(0, start_);
  start_ = 0;
  bytes_ += bytes;
}

Result<std::optional<RelayFrame>> RelayFrameReader::next() {
  const std::string_view rest = std::string_view(bytes_).substr(start_);
  if (rest.size() < kRelayHeaderBytes) return std::optional<RelayFrame>();
  RelayFrame frame{.kind = static_cast<RelayFrame::Kind>(rest[0])};
  std::memcpy(&frame.stream, rest.data() + 1, sizeof(frame.stream));
  std::memcpy(&frame.count, rest.data() + 5, sizeof(frame.count));
  if (!is_possible(frame))
    return Status::stop(
        format_text("what has come is not from Farandole: \"{}\"; start-up files of the shell must "
                    "not write in the background",
                    escape_controls(std::string(rest.substr(0, kShownBytes)))));
  if (frame.kind == RelayFrame::Kind::kData) {
    if (rest.size() < kRelayHeaderBytes + frame.count) return std::optional<RelayFrame>();
    frame.payload = rest.substr(kRelayHeaderBytes, frame.count);
  }
  start_ += kRelayHeaderBytes + frame.payload.size();
  return std::optional(frame);
}

}  // namespace farandole
