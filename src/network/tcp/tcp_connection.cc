#include "network/tcp/tcp_connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/descriptor_limit.h"
#include "base/format.h"
#include "base/try.h"

namespace farandole {
namespace {

// Errors that come from the network or the peer. After such an error, another connection may still
// work.
constexpr std::array kNetworkErrors{ECONNREFUSED, ECONNRESET,    ECONNABORTED, EPIPE,    ETIMEDOUT,
                                    EHOSTUNREACH, EHOSTDOWN,     ENETUNREACH,  ENETDOWN, ENETRESET,
                                    ENOTCONN,     EADDRNOTAVAIL, EPROTO,       EACCES,   EPERM,
                                    ENOPROTOOPT,  EINVAL};

Status tcp_error(int error, const std::string& addresses, const char* call) {
  const std::string text =
      format_text("the TCP connection {} failed: {}: {}", addresses, call, std::strerror(error));
  if (error == ECONNREFUSED) return Status::rebuild_group(text + " (no process listens there)");
  if (std::ranges::count(kNetworkErrors, error) > 0) return Status::rebuild_group(text);
  return Status::stop(text);
}

bool would_block(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS || error == EINPROGRESS;
}

Status set_option(int socket, int level, int option, int value) {
  if (::setsockopt(socket, level, option, &value, sizeof(value)) == 0) return {};
  return Status::stop(format_text("setsockopt({}, {}) on a TCP socket failed: {}", option, value,
                                  std::strerror(errno)));
}

Status apply_options(int socket, const TcpOptions& options) {
  constexpr int kProbeCount = 3;
  const int silence_ms = static_cast<int>(std::max<std::int64_t>(options.silence_max.count(), 1));
  const int probe_s = std::max(1, silence_ms / 1000 / (kProbeCount + 1));
  FARANDOLE_TRY(set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1));
  FARANDOLE_TRY(set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1));
  FARANDOLE_TRY(set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, probe_s));
  FARANDOLE_TRY(set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, probe_s));
  FARANDOLE_TRY(set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbeCount));
  return set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, silence_ms);
}

std::string addresses_of(int socket, const SocketAddress& peer) {
  const auto own = own_address_of(socket);
  return format_text("{} -> {}", own.ok() ? own->text() : "?", peer.text());
}

}  // namespace

Result<std::unique_ptr<TcpConnection>> TcpConnection::dial(
    const SocketAddress& peer_address, const std::optional<SocketAddress>& local_address,
    const TcpOptions& options) {
  const int family = peer_address.is_v6 ? AF_INET6 : AF_INET;
  Descriptor socket = Descriptor::above_standard_streams(
      ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid())
    return Status::stop(format_text("cannot make a TCP socket: {} ({})", std::strerror(errno),
                                    descriptor_advice()));
  FARANDOLE_TRY(apply_options(socket.get(), options));
  if (local_address && local_address->is_v6 == peer_address.is_v6) {
    const KernelAddress local = kernel_address_of(*local_address);
    if (::bind(socket.get(), local.get(), local.bytes) != 0)
      return tcp_error(errno, format_text("{} -> {}", local_address->text(), peer_address.text()),
                       "bind");
  }
  const KernelAddress peer = kernel_address_of(peer_address);
  const bool is_connected = ::connect(socket.get(), peer.get(), peer.bytes) == 0;
  const int error = errno;
  std::unique_ptr<TcpConnection> connection(new TcpConnection(std::move(socket)));
  connection->peer_.addresses = addresses_of(connection->descriptor(), peer_address);
  if (!is_connected && error != EINPROGRESS && error != EINTR)
    return tcp_error(error, connection->peer_.addresses, "connect");
  return connection;
}

Result<std::unique_ptr<TcpConnection>> TcpConnection::adopt(Descriptor socket,
                                                            const TcpOptions& options) {
  FARANDOLE_TRY(apply_options(socket.get(), options));
  const auto peer = peer_address_of(socket.get());
  if (!peer.ok()) return Status::rebuild_group(peer.status().message());
  std::unique_ptr<TcpConnection> connection(new TcpConnection(std::move(socket)));
  connection->peer_.addresses = addresses_of(connection->descriptor(), *peer);
  return connection;
}

Status TcpConnection::error_of(const char* call) const {
  return tcp_error(errno, peer_.addresses, call);
}

Result<std::size_t> TcpConnection::try_send(std::span<const std::byte> first,
                                            std::span<const std::byte> second) {
  if (first.empty() && second.empty()) return std::size_t{0};
  std::array<iovec, 2> parts{iovec{const_cast<std::byte*>(first.data()), first.size()},
                             iovec{const_cast<std::byte*>(second.data()), second.size()}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  for (;;) {
    const ssize_t count = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count >= 0) return static_cast<std::size_t>(count);
    if (would_block(errno)) return std::size_t{0};
    if (errno != EINTR) return error_of("send");
  }
}

Result<std::size_t> TcpConnection::try_receive(std::span<std::byte> into) {
  if (into.empty()) return std::size_t{0};
  for (;;) {
    const ssize_t count = ::recv(socket_.get(), into.data(), into.size(), MSG_DONTWAIT);
    if (count > 0) return static_cast<std::size_t>(count);
    if (count == 0)
      return Status::rebuild_group(
          format_text("the peer has ended the TCP connection {}", peer_.addresses));
    if (would_block(errno)) return std::size_t{0};
    if (errno != EINTR) return error_of("receive");
  }
}

}  // namespace farandole
