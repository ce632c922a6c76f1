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
// is final for that direction only: a peer that has stopped sending may still receive.
//
// A thread that waits for the connection polls descriptor(): for POLLIN if it wants to receive, and
// for POLLOUT if it has bytes to send or has_unsent() is true. It must not wait while
// has_received() is true, because the received bytes have left the kernel, so poll() does not
// report them.
class Connection {
 public:
  virtual ~Connection() = default;

  // Sends `first` and then `second`, but only as many bytes as the connection can take without
  // waiting. Returns how many bytes the connection has taken, which may be 0. Do not pass the taken
  // bytes again. Some of the taken bytes may wait inside the connection until the next call (see
  // has_unsent()). A call without bytes only sends the bytes that wait inside. `first` is meant for
  // a short header, which travels together with the payload in `second`.
  virtual Result<std::size_t> try_send(std::span<const std::byte> first,
                                       std::span<const std::byte> second) = 0;
  // Copies received bytes into the caller's memory, at most as many as fit there. Returns how many
  // bytes it has copied, which may be 0.
  virtual Result<std::size_t> try_receive(std::span<std::byte> into) = 0;

  // Like try_send() and try_receive(), but for the data of tensors. If the link does not seal data,
  // `first` is sealed, but `second` travels in clear. In this case, the peer does not notice if
  // `second` is changed on the way. The peer must receive `first` with try_receive() and `second`
  // with try_receive_data(). It must not ask try_receive() for bytes of `second`.
  virtual Result<std::size_t> try_send_data(std::span<const std::byte> first,
                                            std::span<const std::byte> second) {
    return try_send(first, second);
  }
  virtual Result<std::size_t> try_receive_data(std::span<std::byte> into) {
    return try_receive(into);
  }

  virtual bool has_unsent() const = 0;
  virtual bool has_received() const = 0;
  // Returns a borrowed descriptor for poll(). It is −1 after close(), and in simulations, which
  // have no descriptor.
  virtual int descriptor() const = 0;
  // Tells the peer that the stream ends here, if this is possible without waiting. Unsent bytes are
  // lost. If the caller has not taken all received bytes, the kernel may also drop sent bytes that
  // are still on their way to the peer.
  virtual void close() = 0;
  virtual const ConnectionPeer& peer() const = 0;
};

}  // namespace farandole
