#include "remote/own_host.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <system_error>

#include "base/sibling_program.h"
#include "network/tcp/interfaces.h"
#include "network/tcp/socket_address.h"

namespace farandole {

bool is_own_host(const HostEntry& host) {
  const std::string& name = host.name;
  if (!host.user.empty()) return false;
  if (name == "localhost") return true;
  if (const auto address = SocketAddress::parse_ip(name); address.ok()) {
    const auto of_host = list_interface_addresses();
    return address->is_loopback() ||
           (of_host.ok() &&
            std::ranges::find(*of_host, *address, &InterfaceAddress::address) != of_host->end());
  }
  std::array<char, 256> own{};
  if (::gethostname(own.data(), own.size() - 1) != 0) return false;
  const std::string full = own.data();
  return name == full || name == full.substr(0, full.find('.'));
}

std::string path_on_hosts() {
  std::error_code error;
  const auto program = own_program(error);
  return error ? "farandole" : program.string();
}

}  // namespace farandole
