#include "wire_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "coordination/messages.h"

namespace farandole::sim {

std::string WireWatch::sent(const Envelope& envelope) {
  if (envelope.bytes.size() > kMessageBytesMax)
    return fmt::format("a message of {} bytes", envelope.bytes.size());
  if (envelope.to != 0) return {};
  const auto announcements = decode_announcements(envelope.bytes);
  if (!announcements.ok()) return announcements.status().message();
  const auto& known = names_[envelope.from];
  for (const auto& announcement : *announcements) {
    const auto* in_full = std::get_if<AnnounceInFull>(&announcement);
    if (in_full == nullptr) continue;
    const bool has_id = std::ranges::any_of(
        known, [&](const auto& name) { return name.second == in_full->signature; });
    if (has_id)
      return fmt::format("member {} announces `{}` in full, though it knows its id", envelope.from,
                         shortened(in_full->signature.name, 40));
  }
  return {};
}

std::string WireWatch::arrived(const Envelope& envelope) {
  if (envelope.from != 0) return {};
  const auto items = decode_stream(envelope.bytes);
  if (!items.ok()) return items.status().message();
  auto& known = names_[envelope.to];
  for (const auto& item : *items) {
    if (const auto* define = std::get_if<Define>(&item)) known[define->id] = define->signature;
    if (const auto* forget = std::get_if<Forget>(&item)) known.erase(forget->id);
    if (known.size() > names_max_)
      return fmt::format("{} names have an id, at most {} may", known.size(), names_max_);
  }
  return {};
}

}  // namespace farandole::sim
