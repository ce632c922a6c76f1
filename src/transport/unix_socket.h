// UnixSocket: whole messages, with descriptors, between two processes of one user on one host. The
// receiver looks at the sender's credentials as the kernel attests them, so that nobody else can
// slip a message in.
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

// What fits into one message under the kernel's default socket buffers.
inline constexpr std::size_t kUnixMessageBytesMax = 128 * 1024;
inline constexpr std::size_t kUnixMessageDescriptorsMax = 16;

struct UnixMessage {
  Bytes bytes;
  std::vector<Descriptor> descriptors;  // close-on-exec
  Status complete;  // kStop if some did not fit into this process; then none of them is here
};

// One end of a connected SOCK_SEQPACKET socket. Any thread may send, one thread at a time receives.
// Common errors: kRebuildGroup when the other end is closed; kRetry when the time is over (for the
// try_ calls: when it cannot be done now); kFixCall for an empty message or one over the limits;
// kStop for a system error.
class UnixSocket {
 public:
  // Two connected ends, both close-on-exec. Errors: kStop.
  static Result<std::pair<UnixSocket, UnixSocket>> make_pair();
  // kFixCall, naming what it is instead, unless this is a connected Unix socket of this kind.
  static Status check(int descriptor);
  // Takes a descriptor that came from elsewhere; if check() fails it is closed.
  static Result<UnixSocket> adopt(Descriptor descriptor);

  // Sends duplicates of the borrowed descriptors along.
  Status send(std::span<const std::byte> bytes, std::span<const int> descriptors,
              TimePoint deadline) const;
  Status try_send(std::span<const std::byte> bytes, std::span<const int> descriptors) const;

  // Further errors: kStop for a message of another user and for one over the limits. Such a message
  // is dropped, its descriptors closed. When std::bad_alloc comes out no message was taken.
  Result<UnixMessage> receive(TimePoint deadline) const;
  Result<UnixMessage> try_receive() const;

  const Descriptor& descriptor() const { return descriptor_; }  // borrowed, to poll
  Descriptor take_descriptor() { return std::move(descriptor_); }

 private:
  explicit UnixSocket(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}
  Status wait_for(short events, TimePoint deadline) const;

  Descriptor descriptor_;
};

}  // namespace farandole
