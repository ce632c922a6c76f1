#include "network/tcp/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include "base/format.h"
#include "base/try.h"
#include "base/visible_text.h"

namespace farandole {
namespace {

// Name prefixes of interfaces for containers and virtual machines of this host. Their addresses are
// the same on many hosts, or can be reached only from this host.
constexpr std::array<std::string_view, 14> kVirtualNames{
    "docker", "br-",   "virbr",  "veth", "cni", "flannel", "cali",
    "lxc",    "lxdbr", "podman", "vnet", "tun", "tap",     "kube"};
constexpr int kTierCount = 4;

struct Entry {
  std::string name{};
  bool is_whole_name = false;
  std::optional<AddressRange> range{};

  bool matches(const InterfaceAddress& candidate) const {
    if (range) return range->contains(candidate.address);
    return is_whole_name ? candidate.interface == name : candidate.interface.starts_with(name);
  }
};

// The name of an interface contains neither ':' nor '/'. An IPv4 address has only digits and dots.
bool looks_like_address(std::string_view text) {
  return text.find_first_of(":/") != std::string_view::npos ||
         text.find_first_not_of("0123456789.") == std::string_view::npos;
}

Result<Entry> parse_entry(const std::string& text) {
  if (text.empty())
    return Status::fix_call(
        "an empty text names no network interface; write a name such as eth0, or a range of "
        "addresses such as 10.0.0.0/8");
  if (looks_like_address(text)) {
    FARANDOLE_TRY_ASSIGN(const AddressRange range, AddressRange::parse(text));
    return Entry{.range = range};
  }
  const bool is_beginning = text.back() == '*';
  return Entry{.name = is_beginning ? text.substr(0, text.size() - 1) : text,
               .is_whole_name = !is_beginning};
}

Result<std::vector<Entry>> parse_entries(const std::vector<std::string>& texts) {
  std::vector<Entry> entries;
  for (const std::string& text : texts) {
    FARANDOLE_TRY_ASSIGN(Entry entry, parse_entry(text));
    entries.push_back(std::move(entry));
  }
  return entries;
}

bool any_matches(const std::vector<Entry>& entries, const InterfaceAddress& candidate) {
  return std::ranges::any_of(entries, [&](const Entry& entry) { return entry.matches(candidate); });
}

// Returns the preference of an address: 0 is the best.
int tier_of(const InterfaceAddress& candidate) {
  if (candidate.address.is_loopback()) return 3;
  if (candidate.address.is_link_local()) return 2;
  const auto begins_with = [&](std::string_view name) {
    return candidate.interface.starts_with(name);
  };
  return std::ranges::any_of(kVirtualNames, begins_with) ? 1 : 0;
}

Status no_address_error(const std::vector<InterfaceAddress>& host, const InterfaceChoice& choice) {
  std::string addresses_text;
  for (const auto& [interface, address] : host)
    addresses_text +=
        format_text("{}{} {}", addresses_text.empty() ? "" : ", ", interface, address.ip_text());
  const std::string use =
      choice.use.empty() ? "all interfaces" : escape_controls(join_text(choice.use, ", "));
  const std::string avoid =
      choice.avoid.empty() ? "" : " without " + escape_controls(join_text(choice.avoid, ", "));
  return Status::fix_call(format_text(
      "no address of this host is left for the network: chosen were {}{}, and the host has {}; "
      "choose another interface or range of addresses",
      use, avoid, addresses_text.empty() ? "no address" : addresses_text));
}

}  // namespace

Result<std::vector<InterfaceAddress>> list_interface_addresses() {
  ifaddrs* entries = nullptr;
  if (::getifaddrs(&entries) != 0)
    return Status::stop(
        format_text("cannot list the network interfaces of this host: {}", std::strerror(errno)));
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(entries, &::freeifaddrs);
  std::vector<InterfaceAddress> addresses;
  for (const ifaddrs* entry = entries; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const auto address = socket_address_of(entry->ifa_addr);
    if (address.ok()) addresses.push_back({entry->ifa_name, *address});
  }
  return addresses;
}

Result<std::vector<SocketAddress>> choose_addresses(const std::vector<InterfaceAddress>& host,
                                                    const InterfaceChoice& choice) {
  FARANDOLE_TRY_ASSIGN(const auto use, parse_entries(choice.use));
  FARANDOLE_TRY_ASSIGN(const auto avoid, parse_entries(choice.avoid));
  std::vector<SocketAddress> chosen;
  const auto add_unless_avoided = [&](const InterfaceAddress& candidate) {
    if (!any_matches(avoid, candidate) && std::ranges::count(chosen, candidate.address) == 0)
      chosen.push_back(candidate.address);
  };
  for (const Entry& entry : use)
    for (const InterfaceAddress& candidate : host)
      if (entry.matches(candidate)) add_unless_avoided(candidate);
  for (int tier = 0; use.empty() && chosen.empty() && tier < kTierCount; ++tier)
    for (const InterfaceAddress& candidate : host)
      if (tier_of(candidate) == tier) add_unless_avoided(candidate);
  if (chosen.empty()) return no_address_error(host, choice);
  return chosen;
}

}  // namespace farandole
