// LauncherOrder: what the driver tells the process that it starts on a host. It travels over the
// standard input of that process, after the job's secret (32 bytes). After the order, the driver
// sends one byte for each signal that the process must pass on. The end of the input means that the
// driver is gone.
//
// The process first writes an empty line and its greeting to its standard output, and the same to
// its standard error. Node 0 then writes the lines `listens ADDRESS…` and, when all nodes have
// joined, `begins` to its standard output. After that line, the standard output and error carry the
// output of the workers.
//
// If the order requests a relay, the standard input and output carry frames of the relay after the
// order. Everything described above then travels in two streams of the relay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "nodes/node_options.h"

namespace farandole {

// What the launcher relays over its connection to the driver (see relayed_launcher.h).
struct RelayedParts {
  bool has_channels = false;  // the channels of the workers
  bool has_streams = false;   // the output of the workers, separate from that of the launcher
  bool has_copies = false;    // unchanged copies of the output that the launcher shows

  friend bool operator==(const RelayedParts&, const RelayedParts&) = default;
};

struct LauncherOrder {
  std::string folder;                    // the working directory
  std::vector<std::string> environment;  // "NAME=value"
  std::vector<std::string> flags;        // the flags of `farandole run`
  std::vector<std::string> program;      // the program and its arguments
  bool has_colors = false;               // the driver writes to a terminal
  std::uint32_t columns = 100;           // the width of that terminal
  std::uint32_t nodes = 0;
  std::uint32_t node = 0;
  std::string host;        // the name of the host, as the user has written it
  std::string first_host;  // the name of node 0's host
  // The addresses of node 0's launcher. Empty in the order to node 0, unless it replaces another
  // launcher.
  std::vector<std::string> addresses;
  std::optional<Replacement> replaces{};  // node 0: see NodeOptions
  // Empty: nothing is relayed, and the launcher uses the streams of the connection itself.
  std::optional<RelayedParts> relayed{};

  friend bool operator==(const LauncherOrder&, const LauncherOrder&) = default;
};

inline constexpr std::size_t kOrderBytesMax = 900'000;

// Returns the encoded order: first the length of the fields in four bytes, and then the fields.
Bytes encode(const LauncherOrder& order);
// Decodes the fields, without the length. Empty if the bytes are not an order.
std::optional<LauncherOrder> decode_launcher_order(std::span<const std::byte> bytes);

// The beginning of the greeting. The version of the program follows in the same line.
inline constexpr std::string_view kAgentGreeting = "farandole agent ";

}  // namespace farandole
