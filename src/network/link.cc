#include "network/link.h"

#include <string_view>

#include "base/format.h"

namespace farandole {
namespace {

// If you change the format of the identity, change this text, too. Then builds with different
// formats cannot authenticate each other.
constexpr std::string_view kIdentityLabel = "farandole link 1";

void put_party(ByteWriter& writer, const Party& party) {
  writer.put(party.role);
  writer.put(party.number);
}

Party get_party(ByteReader& reader) {
  const auto role = reader.get<Role>();
  return {role, reader.get<std::uint32_t>()};
}

bool is_known(const Party& party) {
  return party.role >= Role::kLauncher && party.role <= Role::kWorker;
}

}  // namespace

std::string name_of(const Party& party) {
  switch (party.role) {
    case Role::kLauncher:
      return "the launcher";
    case Role::kAgent:
      return format_text("agent {}", party.number);
    case Role::kWorker:
      return format_text("worker {}", party.number);
    case Role::kUnknown:
      break;
  }
  return "an unknown process";
}

Bytes identity_of(const Link& link) {
  ByteWriter writer;
  writer.put_text(kIdentityLabel);
  writer.put(link.job);
  writer.put(link.epoch);
  put_party(writer, link.dialer);
  put_party(writer, link.listener);
  writer.put(static_cast<std::uint8_t>(link.seals_data));
  return writer.take();
}

Result<Link> parse_identity(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  const bool has_label = reader.get_text() == kIdentityLabel;
  Link link;
  link.job = reader.get<std::uint64_t>();
  link.epoch = reader.get<std::uint64_t>();
  link.dialer = get_party(reader);
  link.listener = get_party(reader);
  const auto seals_data = reader.get<std::uint8_t>();
  link.seals_data = seals_data != 0;
  const bool is_valid = has_label && reader.ok() && reader.at_end() && seals_data <= 1;
  if (!is_valid || !is_known(link.dialer) || !is_known(link.listener))
    return Status::fix_call(format_text("{} bytes are not the identity of a link", bytes.size()));
  return link;
}

}  // namespace farandole
