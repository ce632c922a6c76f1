// The form in which users, schedulers and our texts write a host with a port.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/format.h"

namespace farandole {

// "hen:2222", or "[fd00::1]:2222", because an IPv6 address needs brackets.
inline std::string host_and_port(std::string_view host, std::uint64_t port) {
  const bool is_v6 = host.find(':') != std::string_view::npos;
  return format_text("{}{}{}:{}", is_v6 ? "[" : "", host, is_v6 ? "]" : "", port);
}

}  // namespace farandole
