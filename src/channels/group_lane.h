// GroupLane: the lane of this rank in one group, made of the channels to the corresponding members
// on the other hosts.
#pragma once

#include <utility>
#include <vector>

#include "channels/peer_channel.h"
#include "collective/lane.h"

namespace farandole {

class GroupLane final : public Lane {
 public:
  // `channels` contains one channel for each other host, and null for our own host. The channels
  // must outlive this object.
  GroupLane(GroupId group, std::vector<PeerChannel*> channels)
      : group_(group), channels_(std::move(channels)) {}

  void send_entry(const StepIdentity& step, std::span<const std::byte> note) override {
    for (auto* const channel : channels_)
      if (channel != nullptr) channel->send_entry(group_, step, note);
  }
  std::optional<HostEntry> entry(int host, const StepIdentity& step) const override {
    const auto* const peer_entry = channel(host).entry(group_, step);
    if (peer_entry == nullptr) return std::nullopt;
    return HostEntry{peer_entry->step.id, peer_entry->note};
  }
  void begin(const StepIdentity& step) override {
    for (auto* const channel : channels_)
      if (channel != nullptr) channel->begin(group_, step);
  }
  void send(int host, std::span<const std::byte> bytes) override {
    channel(host).send(group_, bytes);
  }
  void receive(int host, std::span<std::byte> into) override {
    channel(host).receive(group_, into);
  }
  std::uint64_t bytes_sent(int host) const override { return channel(host).bytes_sent(group_); }
  std::uint64_t bytes_received(int host) const override {
    return channel(host).bytes_received(group_);
  }

  const std::vector<PeerChannel*>& channels() const { return channels_; }

 private:
  PeerChannel& channel(int host) const { return *channels_[static_cast<std::size_t>(host)]; }

  GroupId group_;
  std::vector<PeerChannel*> channels_;
};

}  // namespace farandole
