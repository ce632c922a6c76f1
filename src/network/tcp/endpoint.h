// Endpoint: the host and port at which the launchers or the ranks of a job meet, as users write it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "farandole/status.h"
#include "network/tcp/interfaces.h"
#include "network/tcp/socket_address.h"

namespace farandole {

struct Endpoint {
  std::string host;  // a name or an IP address, without brackets
  std::uint16_t port = 0;

  // Parses "10.0.0.1:4711", "[fd00::1]:4711" and "node0.example.org:4711". Errors: kFixCall.
  static Result<Endpoint> parse(std::string_view text);
  std::string text() const;  // in the format that parse() reads
};

// Whether the endpoint's host is a name other than localhost that has only loopback addresses.
// Other hosts cannot reach us at such addresses. Debian's /etc/hosts often has such a line for the
// host's own name.
bool is_only_loopback(const Endpoint& endpoint,
                      const std::vector<SocketAddress>& endpoint_addresses);

// Returns those of `endpoint_addresses` that belong to this host. `endpoint_addresses` are the
// addresses of the endpoint's host, `host_addresses` those of this host. A pure function.
// `listener` is the name of this process in errors ("node 0"). Errors: kFixCall if no address
// belongs to this host.
Result<std::vector<SocketAddress>> own_addresses(
    const Endpoint& endpoint, const std::vector<SocketAddress>& endpoint_addresses,
    const std::vector<InterfaceAddress>& host_addresses, std::string_view listener);

}  // namespace farandole
