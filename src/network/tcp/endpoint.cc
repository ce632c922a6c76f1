#include "network/tcp/endpoint.h"

#include <algorithm>
#include <charconv>

#include "base/format.h"
#include "base/host_and_port.h"
#include "base/visible_text.h"
#include "network/tcp/host_name.h"

namespace farandole {
namespace {

std::string addresses_text(const std::vector<SocketAddress>& addresses) {
  std::string text;
  for (const auto& address : addresses) text += (text.empty() ? "" : ", ") + address.ip_text();
  return text;
}

bool belongs_to_host(const SocketAddress& address,
                     const std::vector<InterfaceAddress>& host_addresses) {
  return address.is_loopback() ||
         std::ranges::any_of(host_addresses, [&](const InterfaceAddress& entry) {
           return entry.address.with_port(address.port) == address;
         });
}

}  // namespace

Result<Endpoint> Endpoint::parse(std::string_view text) {
  const auto endpoint_error = [&](std::string_view reason) {
    return Status::fix_call(format_text(
        "\"{}\": {}; write HOST:PORT, such as 10.0.0.1:4711, [fd00::1]:4711 or node0:4711",
        escape_controls(std::string(text)), reason));
  };
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) return endpoint_error("the port is missing");
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  Endpoint endpoint;
  const auto [digits_end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), endpoint.port);
  if (error != std::errc() || digits_end != digits.data() + digits.size() || endpoint.port == 0)
    return endpoint_error("the port must be a number from 1 to 65535");
  const bool has_brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (has_brackets) host = host.substr(1, host.size() - 2);
  if (has_brackets != (host.find(':') != std::string_view::npos))
    return endpoint_error("an IPv6 address needs brackets, and only an IPv6 address has them");
  endpoint.host = host;
  if (!check_host_name(endpoint.host).ok())
    return endpoint_error("the part before the port is neither a host name nor an IP address");
  return endpoint;
}

std::string Endpoint::text() const { return host_and_port(host, port); }

bool is_only_loopback(const Endpoint& endpoint,
                      const std::vector<SocketAddress>& endpoint_addresses) {
  const bool is_name = !SocketAddress::parse_ip(endpoint.host).ok();
  return is_name && endpoint.host != "localhost" &&
         std::ranges::all_of(endpoint_addresses,
                             [](const auto& address) { return address.is_loopback(); });
}

Result<std::vector<SocketAddress>> own_addresses(
    const Endpoint& endpoint, const std::vector<SocketAddress>& endpoint_addresses,
    const std::vector<InterfaceAddress>& host_addresses, std::string_view listener) {
  std::vector<SocketAddress> listen_addresses;
  for (const SocketAddress& address : endpoint_addresses)
    if (belongs_to_host(address, host_addresses) &&
        std::ranges::find(listen_addresses, address) == listen_addresses.end())
      listen_addresses.push_back(address);
  if (!listen_addresses.empty()) return listen_addresses;
  return Status::fix_call(format_text(
      "{0} cannot listen at {1}: {2} is not an address of this host (see `ip address`); the "
      "endpoint must be on the host of {0}",
      listener, endpoint.text(), addresses_text(endpoint_addresses)));
}

}  // namespace farandole
