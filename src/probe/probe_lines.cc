#include "probe/probe_lines.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace farandole {
namespace {

using Json = nlohmann::json;

std::string line_of(const char* kind, const Json& content) {
  return Json{{kind, content}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

template <class T>
T field(const Json& object, const char* name) {
  return object.value(name, T());
}

Json json_of(const HostFacts& facts) {
  Json packages = Json::array();
  for (const Package& package : facts.packages)
    packages.push_back({{"name", package.name}, {"version", package.version}});
  Json addresses = Json::array();
  for (const OfferedAddress& offered : facts.addresses)
    addresses.push_back({{"interface", offered.interface}, {"address", offered.address}});
  return {{"version", facts.version},
          {"kernel", facts.kernel},
          {"packages", packages},
          {"cores", facts.cores},
          {"memory_bytes", facts.memory_bytes},
          {"addresses", addresses},
          {"listen_error", facts.listen_error}};
}

HostFacts facts_in(const Json& object) {
  HostFacts facts{.version = field<std::string>(object, "version"),
                  .kernel = field<std::string>(object, "kernel"),
                  .packages = {},
                  .cores = field<int>(object, "cores"),
                  .memory_bytes = field<std::int64_t>(object, "memory_bytes"),
                  .addresses = {},
                  .listen_error = field<std::string>(object, "listen_error")};
  for (const Json& package : object.value("packages", Json::array()))
    facts.packages.push_back(
        {field<std::string>(package, "name"), field<std::string>(package, "version")});
  for (const Json& offered : object.value("addresses", Json::array()))
    facts.addresses.push_back(
        {field<std::string>(offered, "interface"), field<std::string>(offered, "address")});
  return facts;
}

Json json_of(const Attempt& attempt) {
  return {{"to", attempt.to},
          {"address", attempt.address},
          {"failure", static_cast<int>(attempt.failure)},
          {"error", attempt.error},
          {"round_trip_seconds", attempt.round_trip_seconds},
          {"bytes_per_second", attempt.bytes_per_second}};
}

Attempt attempt_in(const Json& object) {
  const int failure = field<int>(object, "failure");
  const bool is_known = failure >= 0 && failure < kConnectFailureCount;
  return {.to = field<std::uint32_t>(object, "to"),
          .address = field<std::string>(object, "address"),
          .failure = is_known ? static_cast<ConnectFailure>(failure) : ConnectFailure::kOther,
          .error = field<std::string>(object, "error"),
          .round_trip_seconds = field<double>(object, "round_trip_seconds"),
          .bytes_per_second = field<double>(object, "bytes_per_second")};
}

struct OrderEncoder {
  std::string operator()(const BeginOrder& order) const {
    return line_of(
        "begin",
        {{"hosts", order.hosts}, {"number", order.number}, {"environment", order.environment}});
  }
  std::string operator()(const ClockOrder&) const { return line_of("clock", Json::object()); }
  std::string operator()(const ConnectOrder& order) const {
    Json targets = Json::array();
    for (const Target& target : order.targets)
      targets.push_back({{"host", target.host}, {"address", target.address}});
    return line_of("connect", {{"targets", targets}, {"measures", order.measures}});
  }
};

struct AnswerEncoder {
  std::string operator()(const HostFacts& facts) const { return line_of("facts", json_of(facts)); }
  std::string operator()(const NameLookup& lookup) const {
    return line_of("lookup", {{"name", lookup.name}, {"error", lookup.error}});
  }
  std::string operator()(const ClockAnswer& answer) const {
    return line_of("clock", {{"wall_nanoseconds", answer.wall_nanoseconds}});
  }
  std::string operator()(const Attempt& attempt) const {
    return line_of("attempt", json_of(attempt));
  }
};

using Texts = std::vector<std::string>;

std::optional<ProbeOrder> order_in(const std::string& kind, const Json& object) {
  if (kind == "begin")
    return BeginOrder{.hosts = field<Texts>(object, "hosts"),
                      .number = field<std::uint32_t>(object, "number"),
                      .environment = field<Texts>(object, "environment")};
  if (kind == "clock") return ClockOrder{};
  if (kind != "connect") return std::nullopt;
  ConnectOrder order{.targets = {}, .measures = field<bool>(object, "measures")};
  for (const Json& target : object.value("targets", Json::array()))
    order.targets.push_back(
        {field<std::uint32_t>(target, "host"), field<std::string>(target, "address")});
  return order;
}

std::optional<ProbeAnswer> answer_in(const std::string& kind, const Json& object) {
  if (kind == "facts") return facts_in(object);
  if (kind == "lookup")
    return NameLookup{field<std::string>(object, "name"), field<std::string>(object, "error")};
  if (kind == "clock") return ClockAnswer{field<std::int64_t>(object, "wall_nanoseconds")};
  if (kind == "attempt") return attempt_in(object);
  return std::nullopt;
}

// The library throws if a field has another type than we expect.
template <class T>
std::optional<T> decode(std::string_view line,
                        std::optional<T> (*parse)(const std::string&, const Json&)) {
  const Json parsed_line = Json::parse(line, nullptr, false);
  if (!parsed_line.is_object() || parsed_line.size() != 1 || !parsed_line.begin()->is_object())
    return std::nullopt;
  try {
    return parse(parsed_line.begin().key(), *parsed_line.begin());
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

std::string encode(const ProbeOrder& order) { return std::visit(OrderEncoder(), order); }
std::string encode(const ProbeAnswer& answer) { return std::visit(AnswerEncoder(), answer); }

std::optional<ProbeOrder> decode_probe_order(std::string_view line) {
  return decode(line, order_in);
}
std::optional<ProbeAnswer> decode_probe_answer(std::string_view line) {
  return decode(line, answer_in);
}

}  // namespace farandole
