// Endpoint: the host and port at which the launchers of a job's nodes meet, as users write it.
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
  std::string text() const;  // what parse() reads
};

// `found` are the addresses of the endpoint's host. Returns those that belong to this host. A pure
// function. Errors: kFixCall if there is none, or if a name other than localhost leads only to
// loopback addresses, where other hosts cannot reach us.
Result<std::vector<SocketAddress>> own_addresses(const Endpoint& endpoint,
                                                 const std::vector<SocketAddress>& found,
                                                 const std::vector<InterfaceAddress>& of_host);

}  // namespace farandole
