#include "environment/endpoint_variables.h"

#include <charconv>

#include "base/format.h"
#include "base/host_and_port.h"
#include "base/visible_text.h"

namespace farandole {
namespace {

constexpr std::uint64_t kPortFirst = kPortOnExclusiveHosts;
constexpr std::uint64_t kPortCount = 10000;

// Never returns `job` itself: with torchrun, this number is a port that torch.distributed uses.
std::uint64_t port_of_job(std::uint64_t job, std::uint64_t part) {
  const std::uint64_t offset = job * 31 + part;
  const std::uint64_t port = kPortFirst + offset % kPortCount;
  return port == job ? kPortFirst + (offset + 1) % kPortCount : port;
}

}  // namespace

std::optional<std::uint64_t> leading_number(std::string_view text) {
  std::uint64_t number = 0;
  const auto [parse_end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_delimited = parse_end == text.data() + text.size() || *parse_end == '(' ||
                            *parse_end == ',' || *parse_end == '-';
  if (error != std::errc() || !is_delimited || number > INT32_MAX) return std::nullopt;
  return number;
}

std::optional<std::string> endpoint_of(const Environment& environment,
                                       const EndpointVariables& variables) {
  const auto number = [&](const char* name) {
    return leading_number(variable_text(environment, name));
  };
  if (const auto address = variable_text(environment, variables.address); !address.empty())
    return std::string(address);
  std::string host(variable_text(environment, variables.host));
  if (host.empty()) host = first_of_host_list(variable_text(environment, variables.host_list));
  if (host.empty()) return std::nullopt;
  auto port = number(variables.port);
  if (const auto job = number(variables.job); job && !port)
    port = port_of_job(*job, number(variables.part).value_or(0));
  if (!port || *port == 0 || *port > UINT16_MAX) return std::nullopt;
  return host_and_port(host, *port);
}

std::string first_of_host_list(std::string_view list) {
  std::string host;
  bool in_brackets = false;
  bool skips_to_bracket_end = false;
  for (const char letter : list) {
    if (letter == '[' || letter == ']') {
      in_brackets = letter == '[';
      skips_to_bracket_end = false;
    } else if (!in_brackets && letter == ',') {
      break;
    } else if (in_brackets && (letter == ',' || letter == '-')) {
      skips_to_bracket_end = true;
    } else if (!skips_to_bracket_end) {
      host += letter;
    }
  }
  return host;
}

Result<int> leading_number_in(const Environment& environment, const char* variable,
                              std::string_view launcher, int default_value) {
  const std::string_view text = variable_text(environment, variable);
  if (text.empty()) return default_value;
  if (const auto number = leading_number(text)) return static_cast<int>(*number);
  return Status::fix_call(
      format_text("{} is \"{}\", which is not what {} sets; correct it or unset it", variable,
                  escape_controls(text), launcher));
}

}  // namespace farandole
