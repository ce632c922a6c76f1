// The lines in which `farandole doctor -H` talks to the probes on the hosts. Each line is a JSON
// object. Orders go to the standard input of a probe, after the 32 bytes of a secret. Answers come
// from its standard output, after kProbeGreeting with the version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "probe/survey.h"

namespace farandole {

inline constexpr std::string_view kProbeGreeting = "farandole probe ";
inline constexpr std::size_t kProbeLineBytesMax = 4 << 20;

// The first order. The probe begins to listen. It answers with its HostFacts, and with one
// NameLookup for each host.
struct BeginOrder {
  std::vector<std::string> hosts{};  // the names of all hosts
  std::uint32_t number = 0;          // the index of the probe's own host in `hosts`
  std::vector<std::string> environment{};
  friend bool operator==(const BeginOrder&, const BeginOrder&) = default;
};
// The probe answers immediately, with a ClockAnswer.
struct ClockOrder {
  friend bool operator==(const ClockOrder&, const ClockOrder&) = default;
};
struct Target {
  std::uint32_t host = 0;
  std::string address;
  friend bool operator==(const Target&, const Target&) = default;
};
// The probe answers with an Attempt for each target.
struct ConnectOrder {
  std::vector<Target> targets{};
  bool measures = false;  // tries one target after another, and measures each
  friend bool operator==(const ConnectOrder&, const ConnectOrder&) = default;
};
using ProbeOrder = std::variant<BeginOrder, ClockOrder, ConnectOrder>;

struct ClockAnswer {
  std::int64_t wall_nanoseconds = 0;
  friend bool operator==(const ClockAnswer&, const ClockAnswer&) = default;
};
using ProbeAnswer = std::variant<HostFacts, NameLookup, ClockAnswer, Attempt>;

// Both functions return a line without its line end. Bytes that are not UTF-8 are replaced.
std::string encode(const ProbeOrder& order);
std::string encode(const ProbeAnswer& answer);
// decode_probe_order() returns nothing if the line is not an order. decode_probe_answer() returns
// nothing if the line is not an answer. Unknown fields are ignored, and missing ones are empty. So
// probes of another version can report at least their version.
std::optional<ProbeOrder> decode_probe_order(std::string_view line);
std::optional<ProbeAnswer> decode_probe_answer(std::string_view line);

}  // namespace farandole
