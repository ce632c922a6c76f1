// UnixSocket: sends whole messages, with descriptors, between two processes of one user on one
// host. The kernel adds the sender's credentials to each message, and the receiver checks them, so
// that no other user can send a message.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "farandole/status.h"

namespace farandole {

// The largest message that fits into the kernel's default socket buffers.
inline constexpr std::size_t kUnixMessageBytesMax = 128 * 1024;
inline constexpr std::size_t kUnixMessageDescriptorsMax = 128;  // the kernel allows up to 253

struct UnixMessage {
  Bytes bytes;
  std::vector<Descriptor> descriptors;  // close-on-exec
  Status descriptor_status;  // kStop if some descriptors were lost; `descriptors` is then empty
};

// One end of a connected SOCK_SEQPACKET socket. Any thread may send; one thread at a time may
// receive. Errors of the send and receive functions: kRebuildGroup if the other end is closed;
// kRetry at the deadline, or, from a try_ function, if the call would block; kFixCall for an empty
// or too long message; kStop for a system error.
class UnixSocket {
 public:
  // Makes two connected ends, both close-on-exec. Errors: kStop.
  static Result<std::pair<UnixSocket, UnixSocket>> make_pair();
  // Returns ok if the descriptor is a connected Unix socket of type SOCK_SEQPACKET. Otherwise
  // returns kFixCall, with a message that says what the descriptor is.
  static Status check(int descriptor);
  // Takes ownership of a descriptor. If check() fails, closes it.
  static Result<UnixSocket> adopt(Descriptor descriptor);

  // Sends the bytes together with duplicates of the descriptors. The descriptors are borrowed.
  Status send(std::span<const std::byte> bytes, std::span<const int> descriptors,
              TimePoint deadline) const;
  Status try_send(std::span<const std::byte> bytes, std::span<const int> descriptors) const;

  // Further errors: kStop for a message from another user or over the limits. Such a message is
  // dropped, and its descriptors are closed. If std::bad_alloc is thrown, the message stays in the
  // queue.
  Result<UnixMessage> receive(TimePoint deadline) const;
  Result<UnixMessage> try_receive() const;

  const Descriptor& descriptor() const { return descriptor_; }  // borrowed, for poll()
  Descriptor take_descriptor() { return std::move(descriptor_); }

 private:
  explicit UnixSocket(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}
  Status wait_for(short events, TimePoint deadline) const;

  Descriptor descriptor_;
};

}  // namespace farandole
