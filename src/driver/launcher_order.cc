#include "driver/launcher_order.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/fields.h"

namespace farandole {
namespace {

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

// Reads or writes all fields, except the last two, `replaces` and `relayed`.
void visit_fields(auto& visit, auto& order) {
  visit(order.folder), visit(order.environment), visit(order.flags), visit(order.program);
  visit(order.has_colors), visit(order.columns), visit(order.nodes), visit(order.node);
  visit(order.host), visit(order.first_host), visit(order.addresses);
}

void visit_replacement_fields(auto& visit, auto& replaces) {
  visit(replaces.number), visit(replaces.epoch), visit(replaces.workers), visit(replaces.nodes);
}

}  // namespace

Bytes encode(const LauncherOrder& order) {
  FieldWriter writer;
  visit_fields(writer, order);
  writer(order.replaces.has_value());
  if (order.replaces) visit_replacement_fields(writer, *order.replaces);
  writer(bits_of(order.relayed));
  const Bytes content = writer.bytes.take();
  const auto length = static_cast<std::uint32_t>(content.size());
  Bytes message(sizeof(length) + content.size());
  std::memcpy(message.data(), &length, sizeof(length));
  std::ranges::copy(content, message.begin() + sizeof(length));
  return message;
}

std::optional<LauncherOrder> decode_launcher_order(std::span<const std::byte> bytes) {
  FieldReader reader(bytes);
  LauncherOrder order;
  std::uint8_t relayed = 0;
  bool replaces = false;
  visit_fields(reader, order);
  reader(replaces);
  if (replaces) visit_replacement_fields(reader, order.replaces.emplace());
  reader(relayed);
  order.relayed = parts_of(relayed);
  const bool is_possible =
      bits_of(order.relayed) == relayed && !order.program.empty() && order.node < order.nodes;
  return is_possible && reader.is_complete() ? std::optional(std::move(order)) : std::nullopt;
}

}  // namespace farandole
