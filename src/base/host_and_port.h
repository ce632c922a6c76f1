// The form in which users, schedulers and our texts write a host with a port.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/format.h"

namespace farandole {

// Returns "hen:2222". An IPv6 address gets brackets: "[fd00::1]:2222".
inline std::string host_and_port(std::string_view host, std::uint64_t port) {
  const bool is_v6 = host.find(':') != std::string_view::npos;
  return format_text("{}{}{}:{}", is_v6 ? "[" : "", host, is_v6 ? "]" : "", port);
}

}  // namespace farandole
