// StoreChannel: carries the messages between a client and the server of a Store. UnixChannel
// carries them over a Unix socket on the same host, with descriptors; FrameChannel carries them
// between hosts.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "base/clock.h"
#include "farandole/status.h"
#include "transport/unix_socket.h"

namespace farandole {

// The size limit of a message on every channel.
inline constexpr std::size_t kStoreMessageBytesMax = kUnixMessageBytesMax;

// One end of a channel. Any thread may call send(); one thread at a time may receive. The try_
// functions do not block; a server uses only these, from one thread. Errors of all functions:
// kRebuildGroup if the other end is closed; kRetry at the deadline, or if a try_ function would
// block; kStop for a system error, or if the other end violates the protocol.
class StoreChannel {
 public:
  virtual ~StoreChannel() = default;

  virtual Status send(std::span<const std::byte> bytes, std::span<const int> descriptors,
                      TimePoint deadline) = 0;
  virtual Result<UnixMessage> receive(TimePoint deadline) = 0;
  // If try_send() returns kRetry, call it again with the same message, until it returns another
  // result.
  virtual Status try_send(std::span<const std::byte> bytes, std::span<const int> descriptors) = 0;
  virtual Result<UnixMessage> try_receive() = 0;

  virtual bool passes_descriptors() const = 0;
  // Whether this object may already hold a received message. In this case, the message can be
  // received although descriptor() is not readable.
  virtual bool has_received() const = 0;
  virtual int descriptor() const = 0;  // borrowed, for poll()
};

class UnixChannel final : public StoreChannel {
 public:
  explicit UnixChannel(UnixSocket socket) : socket_(std::move(socket)) {}

  Status send(std::span<const std::byte> bytes, std::span<const int> descriptors,
              TimePoint deadline) override {
    return socket_.send(bytes, descriptors, deadline);
  }
  Result<UnixMessage> receive(TimePoint deadline) override { return socket_.receive(deadline); }
  Status try_send(std::span<const std::byte> bytes, std::span<const int> descriptors) override {
    return socket_.try_send(bytes, descriptors);
  }
  Result<UnixMessage> try_receive() override { return socket_.try_receive(); }
  bool passes_descriptors() const override { return true; }
  bool has_received() const override { return false; }
  int descriptor() const override { return socket_.descriptor().get(); }

 private:
  UnixSocket socket_;
};

}  // namespace farandole
