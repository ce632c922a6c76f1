// TcpConnection: the bytes of one TCP socket, in clear. A TlsSession over it proves the identity of
// the peer and seals the bytes. Only tests use a TcpConnection without a TlsSession.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "base/descriptor.h"
#include "farandole/status.h"
#include "network/connection.h"
#include "network/tcp/socket_address.h"

namespace farandole {

struct TcpOptions {
  // The connection fails if the peer's host has not answered for this time (TCP_USER_TIMEOUT, and
  // keepalive while no data is sent). A peer that is alive but does not receive also counts as
  // silent: its TCP window is closed, and the kernel counts the time while the window is closed,
  // too.
  std::chrono::milliseconds silence_max{30'000};
};

// The options for the connections of a job. In an elastic job, `silence_max` is shorter, because
// the job can go on without a silent host.
inline TcpOptions tcp_options(bool is_elastic) {
  return is_elastic ? TcpOptions{.silence_max = std::chrono::seconds(8)} : TcpOptions();
}

// The socket has TCP_NODELAY, so that bytes are sent without delay.
class TcpConnection final : public Connection {
 public:
  // Begins to connect, but does not wait for the result. Until the connection is established, no
  // bytes can be sent or received, and the descriptor is not writable. `local_address` is used if
  // it is of the same family as `peer_address`. If its port is 0, the system chooses a free port.
  // Errors: kRebuildGroup if `peer_address` cannot be reached; kStop if a system call fails.
  static Result<std::unique_ptr<TcpConnection>> dial(
      const SocketAddress& peer_address, const std::optional<SocketAddress>& local_address,
      const TcpOptions& options);
  // Takes ownership of a connected socket. Errors: kStop; kRebuildGroup if the peer is already
  // gone.
  static Result<std::unique_ptr<TcpConnection>> adopt(Descriptor socket, const TcpOptions& options);

  Result<std::size_t> try_send(std::span<const std::byte> first,
                               std::span<const std::byte> second) override;
  Result<std::size_t> try_receive(std::span<std::byte> into) override;
  bool has_unsent() const override { return false; }
  bool has_received() const override { return false; }
  int descriptor() const override { return socket_.get(); }
  void close() override { socket_.reset(); }
  const ConnectionPeer& peer() const override { return peer_; }

 private:
  explicit TcpConnection(Descriptor socket) : socket_(std::move(socket)) {}
  Status error_of(const char* call) const;

  Descriptor socket_;
  ConnectionPeer peer_;
};

}  // namespace farandole
