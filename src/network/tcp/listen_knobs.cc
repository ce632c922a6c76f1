#include "network/tcp/listen_knobs.h"

#include <algorithm>
#include <charconv>
#include <cstddef>

#include "base/format.h"

namespace farandole {
namespace {

// Returns false unless the whole text is a port.
bool parse_port(std::string_view text, std::uint16_t& port) {
  const char* const end = text.data() + text.size();
  const auto [number_end, problem] = std::from_chars(text.data(), end, port);
  return problem == std::errc() && number_end == end && port > 0;
}

}  // namespace

InterfaceChoice parse_interfaces(const std::string& text) {
  InterfaceChoice choice;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string entry = text.substr(begin, end - begin);
    if (entry.starts_with('!'))
      choice.avoid.push_back(entry.substr(1));
    else
      choice.use.push_back(entry);
    begin = end + 1;
  }
  return choice;
}

Result<PortRange> parse_ports(std::string_view text) {
  PortRange range;
  if (text.empty()) return range;
  const std::size_t dash = std::min(text.find('-'), text.size());
  const std::string_view last_text = dash == text.size() ? text : text.substr(dash + 1);
  if (parse_port(text.substr(0, dash), range.first) && parse_port(last_text, range.last) &&
      range.first <= range.last)
    return range;
  return Status::fix_call(format_text(
      "FARANDOLE_PORTS is \"{}\"; it must be a port from 1 to 65535, or a range such as "
      "20000-20099",
      text));
}

}  // namespace farandole
