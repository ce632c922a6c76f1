#include "rendezvous/store_messages.h"

#include <string_view>
#include <utility>

namespace farandole {
namespace {

std::string_view as_text(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Bytes get_bytes(ByteReader& reader) {
  const std::string text = reader.get_text();
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

std::optional<Status> make_status(std::uint8_t code, std::string message) {
  switch (static_cast<StatusCode>(code)) {
    case StatusCode::kOk:
      return Status();
    case StatusCode::kRetry:
      return Status::retry(std::move(message));
    case StatusCode::kRebuildGroup:
      return Status::rebuild_group(std::move(message));
    case StatusCode::kFixCall:
      return Status::fix_call(std::move(message));
    case StatusCode::kStop:
      return Status::stop(std::move(message));
  }
  return std::nullopt;
}

}  // namespace

Bytes StoreRequest::encode() const {
  ByteWriter writer;
  writer.put(kind);
  writer.put(number);
  writer.put(static_cast<std::uint32_t>(keys.size()));
  for (const auto& key : keys) writer.put_text(key);
  writer.put_text(end_key);
  writer.put(delta);
  writer.put_text(as_text(value));
  return writer.take();
}

std::optional<StoreRequest> StoreRequest::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  StoreRequest request;
  const auto kind = reader.get<std::uint8_t>();
  request.kind = static_cast<StoreRequestKind>(kind);
  request.number = reader.get<std::uint64_t>();
  const auto key_count = reader.get<std::uint32_t>();
  for (std::uint32_t k = 0; k < key_count && reader.ok(); ++k)
    request.keys.push_back(reader.get_text());
  request.end_key = reader.get_text();
  request.delta = reader.get<std::int64_t>();
  request.value = get_bytes(reader);
  const bool is_complete = reader.ok() && reader.at_end() && !request.keys.empty();
  if (!is_complete || kind >= kStoreRequestKindCount) return std::nullopt;
  return request;
}

Bytes StoreReply::encode() const {
  ByteWriter writer;
  writer.put(number);
  writer.put(status.code());
  writer.put_text(status.message());
  writer.put(sum);
  writer.put(static_cast<std::uint32_t>(values.size()));
  for (const auto& value : values) {
    writer.put(static_cast<std::uint8_t>(value.has_value()));
    if (!value) continue;
    writer.put_text(as_text(value->bytes));
    writer.put(value->descriptors);
  }
  return writer.take();
}

std::optional<StoreReply> StoreReply::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  StoreReply reply;
  reply.number = reader.get<std::uint64_t>();
  const auto code = reader.get<std::uint8_t>();
  auto status = make_status(code, reader.get_text());
  reply.sum = reader.get<std::int64_t>();
  const auto value_count = reader.get<std::uint32_t>();
  for (std::uint32_t v = 0; v < value_count && reader.ok(); ++v) {
    auto& value = reply.values.emplace_back();
    if (reader.get<std::uint8_t>() == 0) continue;
    value.emplace().bytes = get_bytes(reader);
    value->descriptors = reader.get<std::uint32_t>();
  }
  if (!reader.ok() || !reader.at_end() || !status) return std::nullopt;
  reply.status = *std::move(status);
  return reply;
}

}  // namespace farandole
