#include "rendezvous/launcher_notice.h"

namespace farandole {

Bytes LauncherNotice::encode() const {
  ByteWriter writer;
  writer.put(kind);
  writer.put(std::int64_t{limit.count()});
  writer.put_text(why);
  writer.put(epoch);
  writer.put(rank);
  return writer.take();
}

std::optional<LauncherNotice> LauncherNotice::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  LauncherNotice notice;
  notice.kind = reader.get<Kind>();
  notice.limit = std::chrono::milliseconds(reader.get<std::int64_t>());
  notice.why = reader.get_text();
  notice.epoch = reader.get<std::int64_t>();
  notice.rank = reader.get<std::int32_t>();
  const bool is_known = notice.kind <= Kind::kMemberLost;
  const bool is_valid =
      reader.ok() && reader.at_end() && notice.limit.count() >= 0 && notice.rank >= 0;
  return is_known && is_valid ? std::optional(std::move(notice)) : std::nullopt;
}

}  // namespace farandole
