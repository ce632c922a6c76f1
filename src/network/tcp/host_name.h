// Finds the addresses of a host by its name.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/time_point.h"
#include "farandole/status.h"
#include "network/tcp/socket_address.h"

namespace farandole {

// Returns ok if the text can be a host name (RFC 1123) or is an IP address. Errors: kFixCall.
Status check_host_name(const std::string& name);

// Looks a name up once. Errors: kRetry if the name is not known, or not known yet; kStop.
using HostLookup =
    std::function<Result<std::vector<SocketAddress>>(const std::string& name, std::uint16_t port)>;
Result<std::vector<SocketAddress>> look_up_host(const std::string& name, std::uint16_t port);

// Returns the addresses of a host, with this port, in the system's order of preference. Tries again
// until the deadline, because the name of a container that is just starting is often not known yet.
// Blocks. It may block beyond the deadline, because /etc/resolv.conf sets the time limit of one
// look-up. Errors: kFixCall if `name` is neither a host name nor an IP address, kStop if the name
// was not found in time.
Result<std::vector<SocketAddress>> resolve_host(const std::string& name, std::uint16_t port,
                                                TimePoint deadline,
                                                const HostLookup& look_up = look_up_host);

}  // namespace farandole
