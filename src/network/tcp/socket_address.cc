#include "network/tcp/socket_address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

#include "base/format.h"
#include "base/host_and_port.h"
#include "base/try.h"
#include "base/visible_text.h"

namespace farandole {
namespace {

constexpr std::size_t kV4Bytes = 4;
constexpr std::size_t kV6Bytes = 16;

Status address_error(std::string_view text, std::string_view problem) {
  return Status::fix_call(
      format_text("'{}' is not a network address: {}; write 10.0.0.1:4711 or [fd00::1]:4711",
                  escape_controls(text.substr(0, 100)), problem));
}

template <class Number>
std::optional<Number> whole_number_of(std::string_view text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

Result<std::uint32_t> scope_of(std::string_view address_text, const std::string& name) {
  // The name of an interface has no colon. This is checked here because the kernel ignores a colon
  // and all text after it.
  const bool can_be_name = name.find(':') == std::string::npos;
  if (const unsigned index = can_be_name ? ::if_nametoindex(name.c_str()) : 0; index != 0)
    return index;
  if (const auto index = whole_number_of<std::uint32_t>(name); index && *index > 0) return *index;
  return address_error(address_text,
                       format_text("this host has no interface '{}'", escape_controls(name)));
}

Result<SocketAddress> address_from_socket(int socket, const char* call,
                                          decltype(&::getsockname) get_name) {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof(storage);
  if (get_name(socket, reinterpret_cast<sockaddr*>(&storage), &bytes) != 0)
    return Status::stop(format_text("{} on a TCP socket failed: {}", call, std::strerror(errno)));
  return socket_address_of(reinterpret_cast<const sockaddr*>(&storage));
}

}  // namespace

Result<SocketAddress> SocketAddress::parse_ip(std::string_view text) {
  SocketAddress address;
  const std::size_t percent = text.find('%');
  const std::string ip(text.substr(0, percent));
  // Check this here, because inet_pton() and if_nametoindex() ignore all text after a zero byte.
  if (text.find('\0') != std::string_view::npos) return address_error(text, "it has a zero byte");
  address.is_v6 = ip.find(':') != std::string::npos;
  if (::inet_pton(address.is_v6 ? AF_INET6 : AF_INET, ip.c_str(), address.ip.data()) != 1)
    return address_error(text,
                         address.is_v6 ? "this is no IPv6 address" : "this is no IPv4 address");
  if (percent == std::string_view::npos) return address;
  if (!address.is_link_local())
    return address_error(text, "only a link-local IPv6 address has an interface after '%'");
  FARANDOLE_TRY_ASSIGN(address.scope, scope_of(text, std::string(text.substr(percent + 1))));
  return address;
}

Result<SocketAddress> SocketAddress::parse(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return address_error(text, "the port is missing");
  std::string_view ip = text.substr(0, colon);
  const bool has_brackets = ip.size() >= 2 && ip.front() == '[' && ip.back() == ']';
  if (has_brackets) ip = ip.substr(1, ip.size() - 2);
  const bool has_colon = ip.find(':') != std::string_view::npos;
  if (has_colon && !has_brackets)
    return address_error(text, "an IPv6 address with a port stands in brackets");
  if (has_brackets && !has_colon)
    return address_error(text, "only an IPv6 address stands in brackets");
  const auto port = whole_number_of<std::uint16_t>(text.substr(colon + 1));
  if (!port) return address_error(text, "the port is not a number from 0 to 65535");
  auto address = parse_ip(ip);
  if (!address.ok()) return address;
  return address->with_port(*port);
}

std::string SocketAddress::ip_text() const {
  std::array<char, INET6_ADDRSTRLEN> buffer{};
  ::inet_ntop(is_v6 ? AF_INET6 : AF_INET, ip.data(), buffer.data(), buffer.size());
  std::string text = buffer.data();
  if (scope == 0) return text;
  std::array<char, IF_NAMESIZE> name{};
  return text + "%" + (::if_indextoname(scope, name.data()) ? name.data() : std::to_string(scope));
}

std::string SocketAddress::text() const { return host_and_port(ip_text(), port); }

SocketAddress SocketAddress::with_port(std::uint16_t other_port) const {
  SocketAddress copy = *this;
  copy.port = other_port;
  return copy;
}

bool SocketAddress::is_loopback() const {
  constexpr std::array<std::uint8_t, kV6Bytes> kV6Loopback{0, 0, 0, 0, 0, 0, 0, 0,
                                                           0, 0, 0, 0, 0, 0, 0, 1};
  return is_v6 ? ip == kV6Loopback : ip[0] == 127;
}

bool SocketAddress::is_link_local() const {
  return is_v6 ? ip[0] == 0xfe && (ip[1] & 0xc0U) == 0x80 : ip[0] == 169 && ip[1] == 254;
}

KernelAddress kernel_address_of(const SocketAddress& address) {
  KernelAddress kernel;
  if (address.is_v6) {
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(address.port);
    v6.sin6_scope_id = address.scope;
    std::memcpy(&v6.sin6_addr, address.ip.data(), kV6Bytes);
    std::memcpy(&kernel.storage, &v6, sizeof(v6));
    kernel.bytes = sizeof(v6);
  } else {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(address.port);
    std::memcpy(&v4.sin_addr, address.ip.data(), kV4Bytes);
    std::memcpy(&kernel.storage, &v4, sizeof(v4));
    kernel.bytes = sizeof(v4);
  }
  return kernel;
}

Result<SocketAddress> socket_address_of(const sockaddr* address) {
  SocketAddress result;
  if (address->sa_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, address, sizeof(v4));
    std::memcpy(result.ip.data(), &v4.sin_addr, kV4Bytes);
    result.port = ntohs(v4.sin_port);
    return result;
  }
  if (address->sa_family != AF_INET6)
    return Status::stop(format_text("an address of family {} is neither IPv4 nor IPv6",
                                    static_cast<int>(address->sa_family)));
  sockaddr_in6 v6{};
  std::memcpy(&v6, address, sizeof(v6));
  result.is_v6 = true;
  std::memcpy(result.ip.data(), &v6.sin6_addr, kV6Bytes);
  result.port = ntohs(v6.sin6_port);
  result.scope = v6.sin6_scope_id;
  return result;
}

Result<SocketAddress> own_address_of(int socket) {
  return address_from_socket(socket, "getsockname", &::getsockname);
}

Result<SocketAddress> peer_address_of(int socket) {
  return address_from_socket(socket, "getpeername", &::getpeername);
}

Result<AddressRange> AddressRange::parse(std::string_view text) {
  const std::size_t slash = text.find('/');
  FARANDOLE_TRY_ASSIGN(const SocketAddress first, SocketAddress::parse_ip(text.substr(0, slash)));
  const unsigned bits_max = 8U * (first.is_v6 ? kV6Bytes : kV4Bytes);
  if (slash == std::string_view::npos) return AddressRange{first, bits_max};
  const auto bits = whole_number_of<unsigned>(text.substr(slash + 1));
  if (!bits || *bits > bits_max)
    return Status::fix_call(format_text(
        "'{}' is not a range of addresses: after '/', there must be a number from 0 to {}",
        escape_controls(text.substr(0, 100)), bits_max));
  return AddressRange{first, *bits};
}

bool AddressRange::contains(const SocketAddress& address) const {
  if (address.is_v6 != first.is_v6) return false;
  const std::size_t whole_bytes = bits / 8;
  if (!std::equal(first.ip.begin(), first.ip.begin() + static_cast<std::ptrdiff_t>(whole_bytes),
                  address.ip.begin()))
    return false;
  if (bits % 8 == 0) return true;
  const auto mask = static_cast<unsigned>(0xff00U >> (bits % 8)) & 0xffU;
  return (first.ip[whole_bytes] & mask) == (address.ip[whole_bytes] & mask);
}

}  // namespace farandole
