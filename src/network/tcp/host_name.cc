#include "network/tcp/host_name.h"

#include <netdb.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "base/try.h"
#include "base/visible_text.h"

namespace farandole {
namespace {

constexpr std::size_t kHostNameBytesMax = 253;
constexpr std::size_t kHostLabelBytesMax = 63;
constexpr auto kFirstPause = std::chrono::milliseconds(100);
constexpr auto kLongestPause = std::chrono::milliseconds(2000);

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';  // '_' is not in RFC 1123, but some clusters use it
}

bool is_label(std::string_view label) {
  return !label.empty() && label.size() <= kHostLabelBytesMax && label.front() != '-' &&
         label.back() != '-' && std::ranges::all_of(label, is_name_character);
}

bool is_host_name(std::string_view name) {
  if (name.ends_with('.')) name.remove_suffix(1);
  if (name.empty() || name.size() > kHostNameBytesMax) return false;
  for (;;) {
    const std::size_t dot = name.find('.');
    if (!is_label(name.substr(0, dot))) return false;
    if (dot == std::string_view::npos) return true;
    name.remove_prefix(dot + 1);
  }
}

}  // namespace

Status check_host_name(const std::string& name) {
  if (SocketAddress::parse_ip(name).ok() || is_host_name(name)) return {};
  return Status::fix_call(format_text(
      "'{}' is neither a host name nor an IP address; a name consists of letters, digits, '-' and "
      "'.', and does not begin with '-'",
      escape_controls(name.substr(0, 100))));
}

Result<std::vector<SocketAddress>> look_up_host(const std::string& name, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* entries = nullptr;
  const int error = ::getaddrinfo(name.c_str(), nullptr, &hints, &entries);
  if (error != 0)
    return Status::retry(error == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(entries, &::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = entries; entry != nullptr; entry = entry->ai_next) {
    FARANDOLE_TRY_ASSIGN(const SocketAddress address, socket_address_of(entry->ai_addr));
    addresses.push_back(address.with_port(port));
  }
  return addresses;
}

Result<std::vector<SocketAddress>> resolve_host(const std::string& name, std::uint16_t port,
                                                TimePoint deadline, const HostLookup& look_up) {
  FARANDOLE_TRY(check_host_name(name));
  auto pause = kFirstPause;
  for (int tries = 1;; ++tries) {
    auto addresses = look_up(name, port);
    if (addresses.ok() || addresses.status().code() != StatusCode::kRetry) return addresses;
    const TimePoint now = std::chrono::steady_clock::now();
    if (now >= deadline)
      return Status::stop(format_text(
          "cannot find the host '{}' after {} tries: {}; check the name and the DNS of this host",
          name, tries, addresses.status().message()));
    // A name server does not notify us when it learns a name. So we ask it again after a pause.
    const auto time_left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now);
    ::poll(nullptr, 0, static_cast<int>(std::min(time_left, pause).count()));
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace farandole
