#include "nodes/node_channel.h"

#include <span>
#include <utility>

#include "base/try.h"

namespace farandole {

void NodeChannel::send(const NodeMessage& message) {
  const Bytes payload = encode(message);
  const FrameHeaderBytes header =
      encode_frame_header({.type = FrameType::kControl,
                           .sequence = sent_frame_count_++,
                           .length = static_cast<std::uint32_t>(payload.size())});
  unsent_.insert(unsent_.end(), header.begin(), header.end());
  unsent_.insert(unsent_.end(), payload.begin(), payload.end());
  if (const Status flushed = flush(); status_.ok()) status_ = flushed;
}

Status NodeChannel::flush() {
  while (unsent_start_ < unsent_.size() || connection_->has_unsent()) {
    const auto unsent = std::span(unsent_).subspan(unsent_start_);
    FARANDOLE_TRY_ASSIGN(const std::size_t count, connection_->try_send({}, unsent));
    unsent_start_ += count;
    if (count == 0) break;
  }
  // Erase the sent bytes even if other bytes are unsent. Otherwise, a sender that never pauses
  // would fill the memory.
  unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<std::ptrdiff_t>(unsent_start_));
  unsent_start_ = 0;
  return {};
}

std::vector<NodeMessage> NodeChannel::advance() {
  std::vector<NodeMessage> messages;
  while (status_.ok()) {
    const auto may_have_more = receive_into(messages);
    if (!may_have_more.ok()) status_ = may_have_more.status();
    if (!may_have_more.ok() || !*may_have_more) break;
  }
  if (status_.ok()) status_ = flush();
  return messages;
}

// Returns false if no more bytes have arrived.
Result<bool> NodeChannel::receive_into(std::vector<NodeMessage>& messages) {
  const auto space =
      reads_payload_ ? std::span(payload_).subspan(payload_filled_) : header_.space();
  if (!space.empty()) {
    FARANDOLE_TRY_ASSIGN(const std::size_t count, connection_->try_receive(space));
    if (count == 0) return false;
    if (reads_payload_)
      payload_filled_ += count;
    else
      header_.mark_filled(count);
  }
  if (!reads_payload_ && header_.complete()) {
    FARANDOLE_TRY_ASSIGN(const FrameHeader header, header_.take());
    payload_.resize(header.length);
    payload_filled_ = 0;
    reads_payload_ = true;
  }
  if (!reads_payload_ || payload_filled_ < payload_.size()) return true;
  reads_payload_ = false;
  auto message = decode_node_message(payload_);
  if (!message)
    return Status::rebuild_group(
        "the launcher at the other end runs another version of Farandole; install the same version "
        "on all hosts");
  messages.push_back(*std::move(message));
  return true;
}

}  // namespace farandole
