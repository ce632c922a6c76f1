#include "workers/reserved_port.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace farandole {
namespace {

// Binds the socket to a free port and returns the port. Binds it at all addresses of both families,
// because a listener may use any of them. Returns 0 if the system gives no port; errno then says
// why.
int bind_any_port(int socket, int family) {
  sockaddr_in6 address{};  // zero: all addresses, and a port that the kernel chooses
  address.sin6_family = static_cast<sa_family_t>(family);
  socklen_t bytes = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  auto* const generic_address = reinterpret_cast<sockaddr*>(&address);
  const int disabled = 0;
  if (family == AF_INET6)
    ::setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &disabled, sizeof(disabled));
  if (::bind(socket, generic_address, bytes) != 0 ||
      ::getsockname(socket, generic_address, &bytes) != 0)
    return 0;
  // Set the option only after bind(). If the option were set earlier, bind() could choose a port
  // that another socket with this option uses.
  const int enabled = 1;
  if (::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &enabled, sizeof(enabled)) != 0) return 0;
  return ntohs(address.sin6_port);  // at the same offset in both families
}

}  // namespace

Result<ReservedPort> ReservedPort::create() {
  for (const int family : {AF_INET6, AF_INET}) {  // a kernel may lack IPv6
    Descriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int port = socket.valid() ? bind_any_port(socket.get(), family) : 0;
    if (port != 0) return ReservedPort(std::move(socket), port);
  }
  return Status::stop(std::strerror(errno));
}

}  // namespace farandole
