#include "rendezvous/keys.h"

#include <limits>
#include <string_view>
#include <utility>

namespace farandole::keys {

namespace {

constexpr std::int64_t kEpochMax = std::numeric_limits<std::int32_t>::max();

Status malformed_error(std::string_view record_name, std::size_t bytes) {
  return Status::stop(std::string(record_name) + " in the rendezvous store is malformed (" +
                      std::to_string(bytes) +
                      " bytes); do all workers run the same version of Farandole?");
}

}  // namespace

Bytes ProcessRecord::encode() const {
  ByteWriter writer;
  writer.put(pid);
  writer.put_text(host_token);
  writer.put_text(host_name);
  return writer.take();
}

Result<ProcessRecord> ProcessRecord::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  ProcessRecord record;
  record.pid = reader.get<std::int64_t>();
  record.host_token = reader.get_text();
  record.host_name = reader.get_text();
  if (!reader.ok() || !reader.at_end()) return malformed_error("a process record", bytes.size());
  return record;
}

Bytes RankRequest::encode() const {
  ByteWriter writer;
  writer.put(left_epoch);
  writer.put(state_epoch);
  writer.put(static_cast<std::uint8_t>(knows_state ? 1 : 0));
  return writer.take();
}

Result<RankRequest> RankRequest::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  RankRequest request;
  request.left_epoch = reader.get<std::int64_t>();
  request.state_epoch = reader.get<std::int64_t>();
  request.knows_state = reader.get<std::uint8_t>() != 0;
  const bool is_possible = request.state_epoch >= 0 && request.state_epoch <= request.left_epoch &&
                           request.left_epoch < kEpochMax;
  if (!reader.ok() || !reader.at_end() || !is_possible)
    return malformed_error("a request for a rank", bytes.size());
  return request;
}

Bytes RankRecord::encode() const {
  ByteWriter writer;
  writer.put(epoch);
  writer.put(rank);
  writer.put(size);
  writer.put(static_cast<std::uint8_t>(has_state ? 1 : 0));
  return writer.take();
}

Result<RankRecord> RankRecord::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  RankRecord record;
  record.epoch = reader.get<std::int64_t>();
  record.rank = reader.get<std::int32_t>();
  record.size = reader.get<std::int32_t>();
  record.has_state = reader.get<std::uint8_t>() != 0;
  if (!reader.ok() || !reader.at_end()) return malformed_error("a rank record", bytes.size());
  return record;
}

Bytes MemberRecord::encode() const {
  ByteWriter writer;
  writer.put(pid);
  writer.put_text(host_token);
  writer.put_text(host_name);
  writer.put(static_cast<std::uint32_t>(addresses.size()));
  for (const auto& address : addresses) writer.put_text(address);
  writer.put_text(cores);
  writer.put(size);
  writer.put(static_cast<std::uint32_t>(settings.size()));
  for (const auto& [variable, value] : settings) {
    writer.put_text(variable);
    writer.put_text(value);
  }
  writer.put(static_cast<std::uint32_t>(groups.size()));
  for (const auto& ranks : groups) {
    writer.put(static_cast<std::uint32_t>(ranks.size()));
    for (const int rank : ranks) writer.put(rank);
  }
  return writer.take();
}

Result<MemberRecord> MemberRecord::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  MemberRecord record;
  record.pid = reader.get<std::int64_t>();
  record.host_token = reader.get_text();
  record.host_name = reader.get_text();
  const auto address_count = reader.get<std::uint32_t>();
  for (std::uint32_t a = 0; a < address_count && reader.ok(); ++a)
    record.addresses.push_back(reader.get_text());
  record.cores = reader.get_text();
  record.size = reader.get<std::int32_t>();
  const auto setting_count = reader.get<std::uint32_t>();
  for (std::uint32_t s = 0; s < setting_count && reader.ok(); ++s) {
    std::string variable = reader.get_text();
    record.settings[std::move(variable)] = reader.get_text();
  }
  const auto group_count = reader.get<std::uint32_t>();
  for (std::uint32_t g = 0; g < group_count && reader.ok(); ++g) {
    auto& ranks = record.groups.emplace_back();
    const auto rank_count = reader.get<std::uint32_t>();
    for (std::uint32_t r = 0; r < rank_count && reader.ok(); ++r)
      ranks.push_back(reader.get<int>());
  }
  if (!reader.ok() || !reader.at_end()) return malformed_error("a member record", bytes.size());
  return record;
}

}  // namespace farandole::keys
