#include "remote/own_host.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <system_error>

#include "base/sibling_program.h"
#include "network/tcp/interfaces.h"
#include "network/tcp/socket_address.h"

namespace farandole {

namespace {

// Returns an empty name if the system does not give one.
std::string system_host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace

HostEntry own_host() {
  const std::string name = system_host_name();
  return {.name = name.empty() ? "localhost" : name, .user = {}, .slots = 0};
}

bool is_own_host(const HostEntry& host) {
  const std::string& name = host.name;
  if (!host.user.empty()) return false;
  if (name == "localhost") return true;
  if (const auto address = SocketAddress::parse_ip(name); address.ok()) {
    const auto interface_addresses = list_interface_addresses();
    return address->is_loopback() ||
           (interface_addresses.ok() &&
            std::ranges::find(*interface_addresses, *address, &InterfaceAddress::address) !=
                interface_addresses->end());
  }
  const std::string full_name = system_host_name();
  if (full_name.empty()) return false;
  return name == full_name || name == full_name.substr(0, full_name.find('.'));
}

std::string path_of_program() {
  std::error_code error;
  const auto program = own_program_path(error);
  return error ? "farandole" : program.string();
}

}  // namespace farandole
