// SocketAddress: an IPv4 or IPv6 address with a port. It is converted to and from text and the
// format of the kernel.
#pragma once

#include <sys/socket.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "farandole/status.h"

namespace farandole {

struct SocketAddress {
  bool is_v6 = false;
  std::array<std::uint8_t, 16> ip{};  // in network byte order; IPv4 uses the first four bytes
  std::uint32_t scope = 0;            // of a link-local IPv6 address: the number of the interface
  std::uint16_t port = 0;

  // Parses "10.0.0.1:4711", "[fd00::1]:4711" and "[fe80::1%eth0]:4711". Errors: kFixCall.
  static Result<SocketAddress> parse(std::string_view text);
  // Parses an address without a port: "10.0.0.1", "fd00::1", "fe80::1%eth0". Errors: kFixCall.
  static Result<SocketAddress> parse_ip(std::string_view text);

  std::string text() const;     // in the format that parse() reads
  std::string ip_text() const;  // in the format that parse_ip() reads
  SocketAddress with_port(std::uint16_t other_port) const;
  bool is_loopback() const;
  bool is_link_local() const;

  friend auto operator<=>(const SocketAddress&, const SocketAddress&) = default;
};

// An address in the format of the kernel.
struct KernelAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

KernelAddress kernel_address_of(const SocketAddress& address);
// Errors: kStop if the address is neither IPv4 nor IPv6.
Result<SocketAddress> socket_address_of(const sockaddr* address);
// The addresses of the near end (getsockname) and of the far end (getpeername) of a socket. Errors:
// kStop.
Result<SocketAddress> own_address_of(int socket);
Result<SocketAddress> peer_address_of(int socket);

// A range of addresses, such as 10.0.0.0/8 or fd00::/64.
struct AddressRange {
  SocketAddress first;
  unsigned bits = 0;

  // Errors: kFixCall.
  static Result<AddressRange> parse(std::string_view text);
  bool contains(const SocketAddress& address) const;
};

}  // namespace farandole
