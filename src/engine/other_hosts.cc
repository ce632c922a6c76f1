#include "engine/other_hosts.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "hosts/start_step.h"

namespace farandole {

OtherHosts::OtherHosts(const FormedGroup& formed_group, const Formation& formation,
                       Channels& channels, const GroupMemory& memory)
    : id_(formed_group.id),
      channels_(channels),
      ranks_(formed_group.ranks),
      parts_(formed_group.parts(formation.doorbells->rank())),
      doorbells_(*formation.doorbells),
      memory_(memory) {
  parts_.start_step = start_step;
  parts_.hierarchical_adasum = formation.hierarchical_adasum;
  const auto& own_members = parts_.members[static_cast<std::size_t>(parts_.host)];
  for (const int member : own_members)
    local_ranks_.push_back(formed_group.ranks[static_cast<std::size_t>(member)]);
  const auto own_position = std::ranges::find(local_ranks_, doorbells_.rank());
  CHECK(own_position != local_ranks_.end(), "only members take part");
  local_member_ = static_cast<int>(own_position - local_ranks_.begin());
}

void OtherHosts::connect(TimePoint now) {
  if (local_member_ >= parts_.lanes()) return;
  std::vector<PeerChannel*> lane_channels;
  for (int host = 0; host < parts_.hosts(); ++host) {
    const int member =
        parts_.members[static_cast<std::size_t>(host)][static_cast<std::size_t>(local_member_)];
    const int rank = ranks_[static_cast<std::size_t>(member)];
    PeerChannel* const channel =
        host == parts_.host ? nullptr : &channels_.channel_for_lane(rank, now);
    if (channel != nullptr) channel->begin_group(id_);
    if (channel != nullptr && is_leader()) leaders_.emplace(member, channel);
    lane_channels.push_back(channel);
  }
  lane_.emplace(id_, std::move(lane_channels));
}

HostParts OtherHosts::parts() {
  HostParts parts = parts_;
  parts.lane = lane_ ? &*lane_ : nullptr;
  return parts;
}

std::optional<std::pair<int, Bytes>> OtherHosts::next_message() {
  for (const auto& [member, channel] : leaders_)
    if (auto message = channel->next_message(id_)) return std::pair(member, *std::move(message));
  return std::nullopt;
}

void OtherHosts::send_end(std::uint32_t completed, int rank, const std::string& reason) {
  if (std::exchange(has_sent_end_, true)) return;
  for (const auto& [member, channel] : leaders_)
    channel->send(GroupEnd{id_, completed, rank, reason});
}

void OtherHosts::keep_end(const GroupEnd& end) {
  if (!end_to_forward_ && !forwarded_end()) end_to_forward_ = end;
}

void OtherHosts::forward_end(std::uint32_t completed) {
  if (!end_to_forward_ || static_cast<std::int32_t>(completed - end_to_forward_->completed) < 0)
    return;
  auto& shared_end = memory_.end_on_other_host();
  const auto bytes = std::min(end_to_forward_->reason.size(), shared_end.reason.size());
  std::memcpy(shared_end.reason.data(), end_to_forward_->reason.data(), bytes);
  shared_end.reason_bytes = static_cast<std::uint32_t>(bytes);
  shared_end.rank = end_to_forward_->rank;
  shared_end.is_set.store(1, std::memory_order_seq_cst);
  for (const int rank : local_ranks_) doorbells_.ring(rank);
  end_to_forward_.reset();
}

std::optional<GroupEnd> OtherHosts::forwarded_end() const {
  const auto& shared_end = memory_.end_on_other_host();
  if (shared_end.is_set.load(std::memory_order_seq_cst) == 0) return std::nullopt;
  const auto bytes = std::min<std::size_t>(shared_end.reason_bytes, shared_end.reason.size());
  return GroupEnd{.group = id_,
                  .rank = shared_end.rank,
                  .reason = std::string(shared_end.reason.data(), bytes)};
}

bool OtherHosts::stop() {
  bool lane_is_usable = true;
  if (lane_)
    for (auto* const channel : lane_->channels())
      if (channel != nullptr) lane_is_usable = channel->end_group(id_) && lane_is_usable;
  return lane_is_usable;
}

}  // namespace farandole
