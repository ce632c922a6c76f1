#include "control/tree_relay.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/signature.h"

namespace farandole {
namespace {

// How many messages to the parent may be unacknowledged. With a limit of 1, a leader would first
// send its own announcements. It would then always wait for their acknowledgement before it sends
// the announcements of the members below it.
constexpr std::size_t kUnacknowledgedMax = 2;

// A digest of the call that is announced by id or in full. Empty for an announcement of any other
// kind: its meaning depends on the earlier announcements of the member, so it must stay behind
// them.
std::optional<std::uint64_t> digest_of_call(const Announcement& item) {
  if (const auto* by_id = std::get_if<AnnounceById>(&item)) return by_id->id;
  const auto* in_full = std::get_if<AnnounceInFull>(&item);
  if (in_full == nullptr) return std::nullopt;
  return digest_of(std::string_view(in_full->signature.name));
}

}  // namespace

void TreeRelay::add(const Announcements& announcements) {
  CHECK(!is_root(), "the root has no parent");
  for (const auto& item : announcements.items) merge(announcements.from, item);
}

void TreeRelay::merge(const MemberSet& from, const Announcement& item) {
  if (auto* const queued = find_equal_announcement(from, item)) return queued->from.insert(from);
  if (const auto digest = digest_of_call(item)) positions_of_calls_.emplace(*digest, queue_.size());
  queue_.push_back({from, {item}});
}

// Returns the queued announcement of other members to which `item` can be added; null if there is
// none.
Announcements* TreeRelay::find_equal_announcement(const MemberSet& from, const Announcement& item) {
  const auto is_equal = [&](const Announcements& queued) {
    return queued.items.front() == item && !queued.from.intersects(from);
  };
  if (const auto digest = digest_of_call(item)) {
    const auto [begin, end] = positions_of_calls_.equal_range(*digest);
    const auto entry =
        std::find_if(begin, end, [&](const auto& call) { return is_equal(queue_[call.second]); });
    return entry == end ? nullptr : &queue_[entry->second];
  }
  for (auto queued = queue_.rbegin(); queued != queue_.rend(); ++queued) {
    if (is_equal(*queued)) return &*queued;
    if (queued->from.intersects(from)) break;
  }
  return nullptr;
}

Result<Announcements> TreeRelay::receive_from_child(int from, std::span<const std::byte> message) {
  const auto child = std::ranges::find(position_.children, from, &TreeChild::member);
  if (child == position_.children.end())
    return Status::stop("its sender is neither above nor below this rank in the tree of the group");
  auto announcements = decode_announcements(message);
  if (!announcements.ok()) return announcements;
  if (!child->members_below.contains(announcements->from))
    return Status::stop("it speaks for members that are not below its sender");
  if (child->is_relay) outgoing_.push_back({from, acknowledgement()});
  return announcements;
}

Status TreeRelay::record_acknowledgement() {
  if (unacknowledged_count_ == 0)
    return Status::stop("it acknowledges a message that was not sent");
  --unacknowledged_count_;
  return {};
}

void TreeRelay::pass_down(const Bytes& message) {
  for (const auto& child : position_.children) outgoing_.push_back({child.member, message});
}

std::optional<OutgoingMessage> TreeRelay::next_message() {
  if (!queue_.empty() && unacknowledged_count_ < kUnacknowledgedMax) pack_queue();
  if (outgoing_.empty()) return std::nullopt;
  auto message = std::move(outgoing_.front());
  outgoing_.pop_front();
  return message;
}

// Only a member that sends for others waits for acknowledgements.
void TreeRelay::pack_queue() {
  MessagePacker packer;
  for (const auto& [from, items] : queue_) packer.add(from, items.front());
  queue_.clear();
  positions_of_calls_.clear();
  while (auto message = packer.take()) {
    outgoing_.push_back({*position_.parent, *std::move(message)});
    if (!position_.children.empty()) ++unacknowledged_count_;
  }
}

}  // namespace farandole
