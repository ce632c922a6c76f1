#include "transport/unix_listener.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/descriptor_limit.h"
#include "base/try.h"

namespace farandole {
namespace {

Status listener_error(const char* call) {
  const int error = errno;
  return Status::stop(std::string(call) +
                      " on an abstract Unix socket failed: " + std::strerror(error));
}

struct Address {
  sockaddr_un value{};
  socklen_t bytes = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value); }
};

// The address of an abstract socket begins with a zero byte.
Result<Address> address_of(const std::string& name) {
  Address address;
  if (name.empty() || name.size() >= sizeof(address.value.sun_path))
    return Status::fix_call("an abstract Unix socket cannot have a name of " +
                            std::to_string(name.size()) + " bytes");
  address.value.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), address.value.sun_path + 1);
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Result<Descriptor> make_socket(int flags) {
  Descriptor socket = Descriptor::above_standard_streams(
      ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
  if (!socket.valid()) return listener_error("socket");
  return socket;
}

// Returns the process at the other end, or an error if the process belongs to another user.
Result<pid_t> peer_of(const Descriptor& socket) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
    return listener_error("getsockopt(SO_PEERCRED)");
  if (peer.uid == ::getuid()) return peer.pid;
  return Status::stop(
      "process " + std::to_string(peer.pid) + " of user id " + std::to_string(peer.uid) +
      " is at the other end of the socket by which the ranks of a job meet; this "
      "process belongs to user id " +
      std::to_string(::getuid()) + ", and all processes of a job must belong to the same user");
}

}  // namespace

Result<UnixListener> UnixListener::open(const std::string& name) {
  FARANDOLE_TRY_ASSIGN(const Address address, address_of(name));
  FARANDOLE_TRY_ASSIGN(Descriptor descriptor, make_socket(SOCK_NONBLOCK));
  if (::bind(descriptor.get(), address.get(), address.bytes) != 0) {
    if (errno == EADDRINUSE) return Status::retry("another process has the name `" + name + "`");
    return listener_error("bind");
  }
  if (::listen(descriptor.get(), SOMAXCONN) != 0) return listener_error("listen");
  return UnixListener(std::move(descriptor));
}

Result<UnixSocket> UnixListener::connect(const std::string& name) {
  FARANDOLE_TRY_ASSIGN(const Address address, address_of(name));
  FARANDOLE_TRY_ASSIGN(Descriptor descriptor, make_socket(SOCK_NONBLOCK));
  if (::connect(descriptor.get(), address.get(), address.bytes) != 0) {
    if (errno == EAGAIN)
      return Status::retry("too many processes are waiting to connect to `" + name + "`");
    if (errno == ECONNREFUSED) return Status::retry("no process listens at `" + name + "`");
    return listener_error("connect");
  }
  FARANDOLE_TRY(peer_of(descriptor).status());
  return UnixSocket::adopt(std::move(descriptor));
}

Result<UnixClient> UnixListener::accept() const {
  Descriptor descriptor = Descriptor::above_standard_streams(
      ::accept4(descriptor_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!descriptor.valid()) {
    // ECONNABORTED: the client has already closed its connection.
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNABORTED)
      return Status::retry("nobody is waiting");
    return Status::stop(listener_error("accept4").message() + "; " + descriptor_advice());
  }
  const auto process = peer_of(descriptor);
  if (!process.ok()) return Status::retry(process.status().message());
  FARANDOLE_TRY_ASSIGN(UnixSocket socket, UnixSocket::adopt(std::move(descriptor)));
  return UnixClient{std::move(socket), *process};
}

}  // namespace farandole
