#include "network/frame.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"

namespace farandole {
namespace {

constexpr std::uint32_t kFrameMagic = 0x4e524146;  // "FARN"
constexpr std::uint8_t kFrameVersion = 1;

struct FrameRule {
  FrameType type;
  std::uint32_t payload_bytes_max;
};

constexpr std::array kFrameRules{
    FrameRule{FrameType::kControl, 64U << 10U}, FrameRule{FrameType::kEnter, (64U << 10U) + 8U},
    FrameRule{FrameType::kData, 64U << 20U},    FrameRule{FrameType::kStore, 16U << 20U},
    FrameRule{FrameType::kGroupEnd, 1U << 10U}, FrameRule{FrameType::kDeath, 1U << 10U},
    FrameRule{FrameType::kGoodbye, 1U << 10U},  FrameRule{FrameType::kEnvelope, 64U << 10U},
};

Status frame_error(std::string_view problem) {
  return Status::rebuild_group(format_text(
      "received a frame that cannot be read: {}; the sender is broken, or runs another version of "
      "Farandole (install the same version on all hosts)",
      problem));
}

}  // namespace

std::optional<std::uint32_t> payload_bytes_max(FrameType type) {
  const auto* rule = std::ranges::find(kFrameRules, type, &FrameRule::type);
  if (rule == kFrameRules.end()) return std::nullopt;
  return rule->payload_bytes_max;
}

FrameHeaderBytes encode_frame_header(const FrameHeader& header) {
  CHECK(header.length <= payload_bytes_max(header.type).value(),
        "the receiver rejects a longer payload");
  FrameHeaderBytes bytes;
  std::size_t end = 0;
  // This function must not allocate memory, because it runs for every frame.
  const auto put = [&](auto value) {
    std::memcpy(bytes.data() + end, &value, sizeof(value));
    end += sizeof(value);
  };
  put(kFrameMagic);
  put(kFrameVersion);
  put(header.type);
  put(std::uint16_t{0});
  put(header.epoch);
  put(header.group);
  put(header.generation);
  put(header.plan);
  put(header.step);
  put(header.sequence);
  put(header.length);
  CHECK(end == bytes.size(), "the header has a fixed size");
  return bytes;
}

Result<FrameHeader> parse_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  ByteReader reader(bytes);
  const auto magic = reader.get<std::uint32_t>();
  if (magic != kFrameMagic) return frame_error(format_text("it begins with {:#010x}", magic));
  const auto version = reader.get<std::uint8_t>();
  if (version != kFrameVersion)
    return frame_error(format_text("its version is {}, and ours is {}", version, kFrameVersion));
  FrameHeader header;
  header.type = reader.get<FrameType>();
  const auto flags = reader.get<std::uint16_t>();
  header.epoch = reader.get<std::uint64_t>();
  header.group = reader.get<std::uint32_t>();
  header.generation = reader.get<std::uint32_t>();
  header.plan = reader.get<std::uint32_t>();
  header.step = reader.get<std::uint32_t>();
  header.sequence = reader.get<std::uint64_t>();
  header.length = reader.get<std::uint32_t>();
  CHECK(reader.ok() && reader.at_end(), "the header has a fixed size");
  const auto limit = payload_bytes_max(header.type);
  if (!limit) return frame_error(format_text("its type is {}", static_cast<int>(header.type)));
  if (flags != 0) return frame_error(format_text("its flags are {:#06x}", flags));
  if (header.length > *limit)
    return frame_error(format_text("its payload has {} bytes; the limit for type {} is {}",
                                   header.length, static_cast<int>(header.type), *limit));
  return header;
}

void FrameHeaderReader::mark_filled(std::size_t count) {
  CHECK(count <= kFrameHeaderBytes - count_, "no more can be filled than there was space for");
  count_ += count;
}

Result<FrameHeader> FrameHeaderReader::take() {
  CHECK(complete(), "only a complete header can be parsed");
  count_ = 0;
  return parse_frame_header(bytes_);
}

}  // namespace farandole
