// Connection: one end of a reliable, ordered stream of bytes to one peer. Its functions never
// block. Code above this room knows only this interface: tcp/ implements it, and tests simulate it.
#pragma once

#include <cstddef>
#include <span>

#include "farandole/status.h"
#include "network/link.h"

namespace farandole {

// One thread at a time may use a connection. The destructor closes the connection.
//
// Errors of try_send() and try_receive(): kRebuildGroup if the peer has closed the connection or is
// gone, or if received bytes are not from the peer; kStop if a system call fails for another
// reason. The text contains both addresses and the error of the system. An error in one direction
// is final for that direction: a peer that only stopped sending can still receive.
//
// To sleep, poll descriptor() for POLLIN to receive, and for POLLOUT if there are bytes to send or
// if has_unsent(). Do not sleep while has_received() is true: these bytes have left the kernel, so
// poll() does not report them.
class Connection {
 public:
  virtual ~Connection() = default;

  // Sends `first`, followed by `second`, as far as they fit now. Returns how many bytes the
  // connection has taken: 0 if none fit. Do not pass the taken bytes again. Some of the taken bytes
  // may wait inside the connection until the next call (see has_unsent()). A call without bytes
  // only sends the bytes that wait inside. `first` is meant for a short header, which travels
  // together with the payload in `second`.
  virtual Result<std::size_t> try_send(std::span<const std::byte> first,
                                       std::span<const std::byte> second) = 0;
  // Copies the bytes that have arrived to the caller's memory, as far as they fit, and returns how
  // many bytes it has copied. The number may be 0.
  virtual Result<std::size_t> try_receive(std::span<std::byte> into) = 0;

  // Like try_send() and try_receive(), but for the data of tensors. If the link does not seal data,
  // `first` is sealed, but `second` travels in clear. A change of `second` on the way is then not
  // detected. The peer must receive `first` with try_receive() and `second` with
  // try_receive_data(). It must not ask try_receive() for bytes of `second`.
  virtual Result<std::size_t> try_send_data(std::span<const std::byte> first,
                                            std::span<const std::byte> second) {
    return try_send(first, second);
  }
  virtual Result<std::size_t> try_receive_data(std::span<std::byte> into) {
    return try_receive(into);
  }

  virtual bool has_unsent() const = 0;
  virtual bool has_received() const = 0;
  // The descriptor is borrowed, for poll(). It is −1 after close(), and in simulations that have no
  // descriptor.
  virtual int descriptor() const = 0;
  // Tells the peer that the stream ends here, if this is possible without waiting. Unsent bytes are
  // lost. If some received bytes were not taken, the kernel may also drop sent bytes that are still
  // on their way to the peer.
  virtual void close() = 0;
  virtual const ConnectionPeer& peer() const = 0;
};

}  // namespace farandole
