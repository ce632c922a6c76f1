// Listen knobs: parses the knobs that say where other hosts can reach a rank.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "farandole/status.h"
#include "network/tcp/interfaces.h"

namespace farandole {

// Parses Knobs::network_interfaces. choose_addresses() reports invalid entries.
InterfaceChoice parse_interfaces(const std::string& text);

struct PortRange {
  std::uint16_t first = 0;  // if both ports are 0: any free port
  std::uint16_t last = 0;
};

// Parses Knobs::ports. Errors: kFixCall.
Result<PortRange> parse_ports(std::string_view text);

}  // namespace farandole
