#include "driver/launcher_order.h"

#include <algorithm>
#include <cstring>

namespace farandole {
namespace {

void put(ByteWriter& writer, const std::vector<std::string>& texts) {
  writer.put(static_cast<std::uint32_t>(texts.size()));
  for (const std::string& text : texts) writer.put_text(text);
}

std::vector<std::string> get_texts(ByteReader& reader) {
  std::vector<std::string> texts;
  const auto count = reader.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && reader.ok(); ++i) texts.push_back(reader.get_text());
  return texts;
}

constexpr std::uint8_t kIsRelayed = 1;
constexpr std::uint8_t kHasChannels = 2;
constexpr std::uint8_t kHasStreams = 4;
constexpr std::uint8_t kHasCopies = 8;

std::uint8_t bits_of(const std::optional<RelayedParts>& parts) {
  if (!parts) return 0;
  return static_cast<std::uint8_t>(kIsRelayed | (parts->has_channels ? kHasChannels : 0) |
                                   (parts->has_streams ? kHasStreams : 0) |
                                   (parts->has_copies ? kHasCopies : 0));
}

std::optional<RelayedParts> parts_of(std::uint8_t bits) {
  if ((bits & kIsRelayed) == 0) return std::nullopt;
  return RelayedParts{(bits & kHasChannels) != 0, (bits & kHasStreams) != 0,
                      (bits & kHasCopies) != 0};
}

}  // namespace

Bytes encode(const LauncherOrder& order) {
  ByteWriter writer;
  writer.put_text(order.folder);
  put(writer, order.environment);
  put(writer, order.flags);
  put(writer, order.program);
  writer.put(static_cast<std::uint8_t>(order.has_colors ? 1 : 0));
  writer.put(order.columns);
  writer.put(order.nodes);
  writer.put(order.node);
  writer.put_text(order.host);
  writer.put_text(order.first_host);
  put(writer, order.addresses);
  writer.put(bits_of(order.relayed));
  const Bytes rest = writer.take();
  const auto length = static_cast<std::uint32_t>(rest.size());
  Bytes whole(sizeof(length) + rest.size());
  std::memcpy(whole.data(), &length, sizeof(length));
  std::ranges::copy(rest, whole.begin() + sizeof(length));
  return whole;
}

std::optional<LauncherOrder> decode_launcher_order(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  LauncherOrder order;
  order.folder = reader.get_text();
  order.environment = get_texts(reader);
  order.flags = get_texts(reader);
  order.program = get_texts(reader);
  order.has_colors = reader.get<std::uint8_t>() != 0;
  order.columns = reader.get<std::uint32_t>();
  order.nodes = reader.get<std::uint32_t>();
  order.node = reader.get<std::uint32_t>();
  order.host = reader.get_text();
  order.first_host = reader.get_text();
  order.addresses = get_texts(reader);
  const auto relayed = reader.get<std::uint8_t>();
  order.relayed = parts_of(relayed);
  if (bits_of(order.relayed) != relayed) return std::nullopt;
  if (!reader.ok() || !reader.at_end() || order.program.empty() || order.node >= order.nodes)
    return std::nullopt;
  return order;
}

}  // namespace farandole
