#include "nodes/node_messages.h"

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

namespace farandole {
namespace {

// One list of fields per message serves both directions: `visit` reads or writes each field.
void fields([[maybe_unused]] auto& visit, [[maybe_unused]] auto& message) {
  using Message = std::remove_cvref_t<decltype(message)>;
  if constexpr (std::is_same_v<Message, Hello>)
    visit(message.node), visit(message.nodes), visit(message.workers), visit(message.host);
  else if constexpr (std::is_same_v<Message, Rejection>)
    visit(message.why);
  else if constexpr (std::is_same_v<Message, Waiting>)
    visit(message.missing);
  else if constexpr (std::is_same_v<Message, Start>)
    visit(message.workers), visit(message.master_port);
  else if constexpr (std::is_same_v<Message, WorkerExit>)
    visit(message.rank), visit(message.how);
  else if constexpr (std::is_same_v<Message, Failing>)
    visit(message.node), visit(message.failure.why), visit(message.failure.rank),
        visit(message.failure.blamed_rank), visit(message.failure.signal);
  else if constexpr (std::is_same_v<Message, Ended>)
    visit(message.exit_code), visit(message.report);
  else if constexpr (std::is_same_v<Message, Over>)
    visit(message.exit_code);
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
}

struct Writing {
  ByteWriter writer;

  void operator()(std::uint32_t number) { writer.put(number); }
  void operator()(bool flag) { writer.put(static_cast<std::uint8_t>(flag ? 1 : 0)); }
  void operator()(const std::string& text) { writer.put_text(text); }
  template <class Item>
  void operator()(const std::vector<Item>& items) {
    writer.put(static_cast<std::uint32_t>(items.size()));
    for (const Item& item : items) (*this)(item);
  }
  template <class Value>
  void operator()(const std::optional<Value>& value) {
    (*this)(value.has_value());
    if (value) (*this)(*value);
  }
};

struct Reading {
  ByteReader reader;

  void operator()(std::uint32_t& number) { number = reader.get<std::uint32_t>(); }
  void operator()(bool& flag) { flag = reader.get<std::uint8_t>() != 0; }
  void operator()(std::string& text) { text = reader.get_text(); }
  template <class Item>
  void operator()(std::vector<Item>& items) {
    const auto count = reader.get<std::uint32_t>();
    for (std::uint32_t i = 0; i < count && reader.ok(); ++i) (*this)(items.emplace_back());
  }
  template <class Value>
  void operator()(std::optional<Value>& value) {
    bool has_value = false;
    (*this)(has_value);
    if (has_value) (*this)(value.emplace());
  }
};

template <class Message>
std::optional<NodeMessage> read(std::span<const std::byte> bytes) {
  Reading reading{ByteReader(bytes)};
  Message message;
  fields(reading, message);
  if (!reading.reader.ok() || !reading.reader.at_end()) return std::nullopt;
  return message;
}

template <std::size_t... kIndexes>
std::optional<NodeMessage> read_kind(std::size_t kind, std::span<const std::byte> bytes,
                                     std::index_sequence<kIndexes...> /*all*/) {
  using Reader = std::optional<NodeMessage> (*)(std::span<const std::byte>);
  constexpr std::array<Reader, sizeof...(kIndexes)> kReaders{
      &read<std::variant_alternative_t<kIndexes, NodeMessage>>...};
  return kind < kReaders.size() ? kReaders[kind](bytes) : std::nullopt;
}

}  // namespace

Bytes encode(const NodeMessage& message) {
  Writing writing;
  writing.writer.put(static_cast<std::uint8_t>(message.index()));
  std::visit([&](const auto& content) { fields(writing, content); }, message);
  return writing.writer.take();
}

std::optional<NodeMessage> decode_node_message(std::span<const std::byte> bytes) {
  if (bytes.empty()) return std::nullopt;
  return read_kind(static_cast<std::size_t>(bytes.front()), bytes.subspan(1),
                   std::make_index_sequence<std::variant_size_v<NodeMessage>>());
}

}  // namespace farandole
