// FrameChannel: messages of a Store as frames of a connection between hosts. Each frame carries one
// message. The frames of each direction are numbered.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "base/bytes.h"
#include "base/guarded.h"
#include "network/connection.h"
#include "network/frame.h"
#include "rendezvous/store_channel.h"

namespace farandole {

// In a forked child, the destructor only closes the child's descriptor. It sends nothing to the
// other end, because the connection belongs to the parent.
class FrameChannel final : public StoreChannel {
 public:
  explicit FrameChannel(std::unique_ptr<Connection> connection);
  ~FrameChannel() override;
  FrameChannel(const FrameChannel&) = delete;
  FrameChannel& operator=(const FrameChannel&) = delete;

  // This channel carries no descriptors. If send() fails at the deadline, this object keeps the
  // unsent part of the message, and sends it before the next message.
  Status send(std::span<const std::byte> bytes, std::span<const int> descriptors,
              TimePoint deadline) override;
  Result<UnixMessage> receive(TimePoint deadline) override;
  Status try_send(std::span<const std::byte> bytes, std::span<const int> descriptors) override;
  Result<UnixMessage> try_receive() override;

  bool passes_descriptors() const override { return false; }
  bool has_received() const override;
  int descriptor() const override { return descriptor_; }

 private:
  struct Stream {
    std::unique_ptr<Connection> connection;
    Bytes unsent;                    // bytes of frames that the connection has not taken
    std::uint64_t bytes_queued = 0;  // total bytes of all frames so far
    std::uint64_t bytes_sent = 0;    // how many of these bytes have left this process
    std::uint64_t frames_queued = 0;
    // Whether the message of the last try_send() is queued, so that a repeated call does not queue
    // the message again.
    bool try_send_has_queued = false;
    FrameHeaderReader header_reader;
    Bytes message;  // the message of the frame whose header was read last
    std::size_t message_bytes_received = 0;
    bool is_in_message = false;
    std::uint64_t frames_received = 0;
  };

  static Status queue(Stream& stream, std::span<const std::byte> bytes);
  static Status flush(Stream& stream);
  // Returns true if a whole message has arrived, false if more bytes must arrive.
  static Result<bool> read_message(Stream& stream);
  static Result<bool> read_header(Stream& stream);

  const pid_t owner_pid_;
  const int descriptor_;
  Guarded<Stream>* const stream_;  // owned, but not freed in a forked child
};

}  // namespace farandole
