// Chooses the addresses of this host at which peers on other hosts can reach it.
#pragma once

#include <string>
#include <vector>

#include "farandole/status.h"
#include "network/tcp/socket_address.h"

namespace farandole {

// One address of an interface that is up. An interface with several addresses has several entries.
struct InterfaceAddress {
  std::string interface;
  SocketAddress address;  // its port is 0
};

// An entry of `use` or `avoid` is the name of an interface ("eth0"), the beginning of names
// ("ib*"), an address, or a range of addresses ("10.0.0.0/8").
struct InterfaceChoice {
  std::vector<std::string> use{};    // empty: the default choice
  std::vector<std::string> avoid{};  // overrides `use`
};

// Errors: kStop.
Result<std::vector<InterfaceAddress>> list_interface_addresses();

// Returns the chosen addresses. If `use` has entries, these are the addresses that match an entry,
// in the order of the entries. If `use` is empty, these are all addresses of one kind. The kinds
// are, in this order: addresses of ordinary interfaces, addresses of bridges and virtual interfaces
// (Docker, libvirt, veth and so on), link-local addresses, loopback addresses. The first kind of
// which this host has an address is chosen. Errors: kFixCall for an invalid entry, or if no address
// remains; the text lists all addresses of the host.
Result<std::vector<SocketAddress>> choose_addresses(const std::vector<InterfaceAddress>& host,
                                                    const InterfaceChoice& choice);

}  // namespace farandole
