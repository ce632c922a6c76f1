#include "nodes/node_messages.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "base/fields.h"
#include "base/format.h"

namespace farandole {
namespace {

// A control frame has room for 64 KiB. The remaining bytes are for the other fields, and for the
// line that replaces missing lines.
constexpr std::size_t kReportBytesMax = 60U << 10U;

std::size_t bytes_in_message(const std::string& line) {
  return sizeof(std::uint32_t) + line.size();
}

// Returns how many of the lines that begin at `line` fit into `bytes` bytes. Call it only if not
// all of these lines fit.
std::size_t lines_that_fit(auto line, std::size_t bytes) {
  std::size_t count = 0;
  for (; bytes_in_message(*line) <= bytes; ++line, ++count) bytes -= bytes_in_message(*line);
  return count;
}

// Calls `visit` for each field of a message. `visit` either reads or writes the field, so the
// fields are listed only once.
void visit_fields([[maybe_unused]] auto& visit, [[maybe_unused]] auto& message) {
  using Message = std::remove_cvref_t<decltype(message)>;
  if constexpr (std::is_same_v<Message, Hello>)
    visit(message.node), visit(message.nodes), visit(message.workers), visit(message.host),
        visit(message.version), visit(message.tensorflow_ports), visit(message.uses_jax),
        visit(message.is_elastic), visit(message.master_port), visit(message.has_begun);
  else if constexpr (std::is_same_v<Message, NodeRejection>)
    visit(message.why);
  else if constexpr (std::is_same_v<Message, MissingNodes>)
    visit(message.missing);
  else if constexpr (std::is_same_v<Message, Start>)
    visit(message.workers), visit(message.master_port), visit(message.master_address),
        visit(message.jax_port), visit(message.tensorflow_ports), visit(message.addresses),
        visit(message.has_begun);
  else if constexpr (std::is_same_v<Message, WorkerExit>)
    visit(message.rank), visit(message.how_it_ended), visit(message.succeeded);
  else if constexpr (std::is_same_v<Message, FailedNode>)
    visit(message.node), visit(message.failure.why), visit(message.failure.rank),
        visit(message.failure.blamed_rank), visit(message.failure.signal),
        visit(message.failure.first_rank), visit(message.failure.ranks);
  else if constexpr (std::is_same_v<Message, NodeEnded>)
    visit(message.exit_code), visit(message.report);
  else if constexpr (std::is_same_v<Message, JobOver>)
    visit(message.exit_code), visit(message.first_failed_node);
  else if constexpr (std::is_same_v<Message, WorkerReport>)
    visit(message.rank), visit(message.report);
  else if constexpr (std::is_same_v<Message, StacksWanted>)
    visit(message.ranks);
  else if constexpr (std::is_same_v<Message, StackReport>)
    visit(message.lines);
  else if constexpr (std::is_same_v<Message, TimelineWanted>)
    visit(message.pieces), visit(message.job), visit(message.first_event);
  else if constexpr (std::is_same_v<Message, TimelinePiece>)
    visit(message.node), visit(message.text);
  else if constexpr (std::is_same_v<Message, TimelineEnd>)
    visit(message.node), visit(message.why);
  else if constexpr (std::is_same_v<Message, NodeLeaves>)
    visit(message.node);
  else if constexpr (std::is_same_v<Message, WorkerStop>)
    visit(message.slot), visit(message.is_stopped);
  else if constexpr (std::is_same_v<Message, WorkerStart>)
    visit(message.slot), visit(message.number);
  else if constexpr (std::is_same_v<Message, WorkerKill>)
    visit(message.number), visit(message.is_former_member);
  else if constexpr (std::is_same_v<Message, GroupFormed>)
    visit(message.epoch), visit(message.slots), visit(message.numbers), visit(message.state_epoch);
  else if constexpr (std::is_same_v<Message, MemberLost>)
    visit(message.epoch), visit(message.rank);
  else if constexpr (std::is_same_v<Message, NodeState>)
    visit(message.node), visit_fields(visit, message.group), visit(message.slots),
        visit(message.numbers), visit(message.stopped_slots), visit(message.is_finishing),
        visit(message.is_leaving);
}

template <class Message>
std::optional<NodeMessage> read_message(std::span<const std::byte> bytes) {
  FieldReader reader(bytes);
  Message message;
  visit_fields(reader, message);
  if (!reader.is_complete()) return std::nullopt;
  return message;
}

template <std::size_t... kIndexes>
std::optional<NodeMessage> read_kind(std::size_t kind, std::span<const std::byte> bytes,
                                     std::index_sequence<kIndexes...> /*all*/) {
  using Reader = std::optional<NodeMessage> (*)(std::span<const std::byte>);
  constexpr std::array<Reader, sizeof...(kIndexes)> kReaders{
      &read_message<std::variant_alternative_t<kIndexes, NodeMessage>>...};
  return kind < kReaders.size() ? kReaders[kind](bytes) : std::nullopt;
}

}  // namespace

NodeEnded make_node_ended(int exit_code, const std::vector<std::string>& report) {
  NodeEnded ended{static_cast<std::uint32_t>(exit_code), report};
  std::size_t bytes = 0;
  for (const std::string& line : report) bytes += bytes_in_message(line);
  if (bytes <= kReportBytesMax) return ended;
  const std::size_t first_count = lines_that_fit(report.begin(), kReportBytesMax / 2);
  const std::size_t last_count = lines_that_fit(report.rbegin(), kReportBytesMax / 2);
  const auto gap_begin = ended.report.begin() + static_cast<std::ptrdiff_t>(first_count);
  const auto gap_end = ended.report.end() - static_cast<std::ptrdiff_t>(last_count);
  *gap_begin = format_text("… lines are missing here, because the report is too long: {}",
                           gap_end - gap_begin);
  ended.report.erase(gap_begin + 1, gap_end);
  return ended;
}

Bytes encode(const NodeMessage& message) {
  FieldWriter writer;
  writer(static_cast<std::uint8_t>(message.index()));
  std::visit([&](const auto& content) { visit_fields(writer, content); }, message);
  return writer.bytes.take();
}

std::optional<NodeMessage> decode_node_message(std::span<const std::byte> bytes) {
  if (bytes.empty()) return std::nullopt;
  return read_kind(static_cast<std::size_t>(bytes.front()), bytes.subspan(1),
                   std::make_index_sequence<std::variant_size_v<NodeMessage>>());
}

}  // namespace farandole
