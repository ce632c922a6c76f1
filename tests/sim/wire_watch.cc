#include "wire_watch.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <variant>
#include <vector>

#include "base/format.h"
#include "control/messages.h"

namespace farandole::sim {
namespace {

std::string shown_name(const std::string& name) { return shortened(name, 30); }

struct ItemText {
  std::string operator()(const AnnounceInFull& item) const {
    return format_text("announces `{}`", shown_name(item.signature.name));
  }
  std::string operator()(const AnnounceById& item) const {
    return format_text("announces id {}", item.id);
  }
  std::string operator()(const AnnounceAgain& item) const {
    return format_text("announces `{}` again", shown_name(item.signature.name));
  }
  std::string operator()(const AnnounceJoin& /*item*/) const { return "joins"; }
  std::string operator()(const Raise& item) const {
    static constexpr std::array<std::string_view, 3> kCauses = {
        "a misprediction", "its bucket waits", "no fragment follows"};
    return format_text("raises a replan of generation {}: {}, fragment {}, bucket {}, ready {}",
                       item.generation, kCauses.at(static_cast<std::size_t>(item.cause)),
                       item.fragment, item.bucket, join_text(item.ready, " "));
  }
  std::string operator()(const Report& item) const {
    return format_text("reports {}.{} completed, {}", item.generation, item.completed,
                       item.entered == 0 ? "nothing entered"
                                         : format_text("{:04x} entered", item.identity & 0xffffU));
  }
  std::string operator()(const Define& item) const {
    return format_text("id {} is `{}`", item.id, shown_name(item.signature.name));
  }
  std::string operator()(const Forget& item) const { return format_text("forget id {}", item.id); }
  std::string operator()(const Issue& item) const {
    return format_text("{}.{} is id {}", item.generation, item.sequence, item.id);
  }
  std::string operator()(const Reject& item) const {
    return format_text("reject `{}`", shown_name(item.name));
  }
  std::string operator()(const ReleaseAll& item) const {
    return format_text("release all, rank {} was the last to join", item.last_rank);
  }
  std::string operator()(const Stop& item) const {
    return format_text("stop generation {}", item.generation);
  }
  std::string operator()(const Answer& item) const {
    return format_text(
        "generation {} begins after {}, {}", item.generation, item.common_prefix,
        item.fragment == 0 ? "learn" : format_text("plan at fragment {}", item.fragment));
  }
  std::string operator()(const AddBucket& item) const {
    return format_text("fragment {} has a bucket of ids {}", item.fragment,
                       join_text(item.ids, " "));
  }
  std::string operator()(const DropFragment& item) const {
    return format_text("fragment {} is no more", item.fragment);
  }
  std::string operator()(const AddEdge& item) const {
    return format_text("fragment {} may follow {}", item.to, item.from);
  }
  std::string operator()(const Follow& item) const {
    return format_text("after {}.{} follow the plan from fragment {}", item.generation,
                       item.sequence, item.fragment);
  }
};

template <class Item>
std::string items_text(const std::vector<Item>& items) {
  constexpr std::size_t kShownMax = 6;
  std::string text;
  for (std::size_t index = 0; index < items.size() && index < kShownMax; ++index)
    text += (index > 0 ? ", " : "") + std::visit(ItemText(), items[index]);
  if (items.size() > kShownMax) text += format_text(" and {} more", items.size() - kShownMax);
  return text;
}

}  // namespace

std::string message_text(const Bytes& message) {
  if (is_acknowledgement(message)) return "an acknowledgement";
  if (const auto announced = decode_announcements(message); announced.ok())
    return items_text(announced->items);
  if (const auto stream = decode_stream(message); stream.ok()) return items_text(*stream);
  return "nonsense";
}

std::string WireWatch::check_sent(const Envelope& envelope) {
  if (envelope.bytes.size() > kMessageBytesMax)
    return format_text("a message of {} bytes", envelope.bytes.size());
  if (is_acknowledgement(envelope.bytes) || decode_stream(envelope.bytes).ok()) return {};
  const auto announcements = decode_announcements(envelope.bytes);
  if (!announcements.ok()) return announcements.status().message();
  std::string problem;
  for (const auto& announcement : announcements->items) {
    const auto* in_full = std::get_if<AnnounceInFull>(&announcement);
    if (in_full == nullptr) continue;
    announcements->from.for_each([&](int member) {
      const bool has_id = std::ranges::any_of(
          names_[member], [&](const auto& name) { return name.second == in_full->signature; });
      if (has_id)
        problem = format_text("member {} announces `{}` in full, though it knows its id", member,
                              shortened(in_full->signature.name, 40));
    });
  }
  return problem;
}

std::string WireWatch::check_arrived(const Envelope& envelope) {
  const auto items = decode_stream(envelope.bytes);
  if (!items.ok()) return {};  // check_sent() has already reported this
  auto& known = names_[envelope.to];
  for (const auto& item : *items) {
    if (const auto* define = std::get_if<Define>(&item)) known[define->id] = define->signature;
    if (const auto* forget = std::get_if<Forget>(&item)) known.erase(forget->id);
    if (known.size() > names_max_)
      return format_text("{} names have an id, at most {} may", known.size(), names_max_);
  }
  return {};
}

}  // namespace farandole::sim
