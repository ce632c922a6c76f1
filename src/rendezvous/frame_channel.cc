#include "rendezvous/frame_channel.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "base/try.h"

namespace farandole {
namespace {

// Waits until the descriptor is ready. Returns kRetry at the deadline.
Status wait_for_socket(int descriptor, short events, TimePoint deadline) {
  const auto time_left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  if (time_left.count() <= 0) return Status::retry("the deadline has passed");
  constexpr std::int64_t kLongestWaitMs = 60'000;
  pollfd entry{descriptor, events, 0};
  ::poll(&entry, 1, static_cast<int>(std::min<std::int64_t>(time_left.count(), kLongestWaitMs)));
  return {};
}

}  // namespace

FrameChannel::FrameChannel(std::unique_ptr<Connection> connection)
    : owner_pid_(::getpid()), descriptor_(connection->descriptor()), stream_(new Guarded<Stream>) {
  stream_->lock()->connection = std::move(connection);
}

FrameChannel::~FrameChannel() {
  if (owner_pid_ == ::getpid()) {
    delete stream_;
    return;
  }
  ::close(descriptor_);
}

Status FrameChannel::queue(Stream& stream, std::span<const std::byte> bytes) {
  if (bytes.empty() || bytes.size() > kStoreMessageBytesMax)
    return Status::fix_call(format_text("a message of {} bytes is not between 1 and {} bytes",
                                        bytes.size(), kStoreMessageBytesMax));
  const auto header = encode_frame_header({.type = FrameType::kStore,
                                           .sequence = stream.frames_queued,
                                           .length = static_cast<std::uint32_t>(bytes.size())});
  stream.unsent.insert(stream.unsent.end(), header.begin(), header.end());
  stream.unsent.insert(stream.unsent.end(), bytes.begin(), bytes.end());
  stream.bytes_queued += header.size() + bytes.size();
  ++stream.frames_queued;
  return {};
}

Status FrameChannel::flush(Stream& stream) {
  std::size_t bytes_taken = 0;
  while (bytes_taken < stream.unsent.size() || stream.connection->has_unsent()) {
    const auto sent_bytes =
        stream.connection->try_send({}, std::span(stream.unsent).subspan(bytes_taken));
    if (!sent_bytes.ok()) return sent_bytes.status();
    bytes_taken += *sent_bytes;
    if (*sent_bytes == 0) break;
  }
  stream.unsent.erase(stream.unsent.begin(),
                      stream.unsent.begin() + static_cast<std::ptrdiff_t>(bytes_taken));
  if (!stream.connection->has_unsent())
    stream.bytes_sent = stream.bytes_queued - stream.unsent.size();
  return {};
}

Status FrameChannel::send(std::span<const std::byte> bytes, std::span<const int> descriptors,
                          TimePoint deadline) {
  CHECK(descriptors.empty(), "descriptors do not leave their host");
  std::uint64_t message_end = 0;
  {
    auto stream = stream_->lock();
    FARANDOLE_TRY(queue(*stream, bytes));
    message_end = stream->bytes_queued;
  }
  for (;;) {
    {
      auto stream = stream_->lock();
      FARANDOLE_TRY(flush(*stream));
      if (stream->bytes_sent >= message_end) return {};
    }
    FARANDOLE_TRY(wait_for_socket(descriptor_, POLLOUT, deadline));
  }
}

Status FrameChannel::try_send(std::span<const std::byte> bytes, std::span<const int> descriptors) {
  CHECK(descriptors.empty(), "descriptors do not leave their host");
  auto stream = stream_->lock();
  if (!std::exchange(stream->try_send_has_queued, true)) FARANDOLE_TRY(queue(*stream, bytes));
  FARANDOLE_TRY(flush(*stream));
  if (stream->bytes_sent < stream->bytes_queued) return Status::retry("no room");
  stream->try_send_has_queued = false;
  return {};
}

Result<bool> FrameChannel::read_header(Stream& stream) {
  FARANDOLE_TRY_ASSIGN(const std::size_t count,
                       stream.connection->try_receive(stream.header_reader.space()));
  stream.header_reader.mark_filled(count);
  if (!stream.header_reader.complete()) return count > 0;
  const auto frame_header = stream.header_reader.take();
  if (!frame_header.ok()) return Status::stop(frame_header.status().message());
  const FrameHeader expected_header{.type = FrameType::kStore,
                                    .sequence = stream.frames_received,
                                    .length = frame_header->length};
  if (*frame_header != expected_header || frame_header->length == 0 ||
      frame_header->length > kStoreMessageBytesMax)
    return Status::stop(format_text(
        "a frame came that is not the next message of a Store of at most {} bytes (type {}, number "
        "{} instead of {}, {} bytes)",
        kStoreMessageBytesMax, static_cast<int>(frame_header->type), frame_header->sequence,
        stream.frames_received, frame_header->length));
  stream.message.resize(frame_header->length);
  stream.message_bytes_received = 0;
  stream.is_in_message = true;
  return true;
}

Result<bool> FrameChannel::read_message(Stream& stream) {
  for (;;) {
    if (!stream.is_in_message) {
      FARANDOLE_TRY_ASSIGN(const bool progress, read_header(stream));
      if (!progress) return false;
      continue;
    }
    FARANDOLE_TRY_ASSIGN(const std::size_t count,
                         stream.connection->try_receive(
                             std::span(stream.message).subspan(stream.message_bytes_received)));
    stream.message_bytes_received += count;
    if (stream.message_bytes_received == stream.message.size()) {
      stream.is_in_message = false;
      ++stream.frames_received;
      return true;
    }
    if (count == 0) return false;
  }
}

Result<UnixMessage> FrameChannel::try_receive() {
  auto stream = stream_->lock();
  FARANDOLE_TRY_ASSIGN(const bool is_whole, read_message(*stream));
  if (!is_whole) return Status::retry("no message");
  return UnixMessage{std::exchange(stream->message, {}), {}, {}};
}

Result<UnixMessage> FrameChannel::receive(TimePoint deadline) {
  for (;;) {
    auto message = try_receive();
    if (message.ok() || message.status().code() != StatusCode::kRetry) return message;
    FARANDOLE_TRY(wait_for_socket(descriptor_, POLLIN, deadline));
  }
}

bool FrameChannel::has_received() const { return stream_->lock()->connection->has_received(); }

}  // namespace farandole
