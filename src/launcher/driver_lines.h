// The lines that a launcher writes to its standard output for the driver that has started it.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace farandole {

// Node 0: "listens ADDRESS…", with a space before each address, as soon as it listens.
inline constexpr std::string_view kListens = "listens";
// Node 0: all nodes have joined. From then on, the standard output is that of the workers.
inline constexpr std::string_view kBegins = "begins";
// Node 0 of an elastic job: the connection to this node, whose number follows, has ended.
inline constexpr std::string_view kLostNode = "farandole agent: lost node ";
// The same: this node has asked to leave the job.
inline constexpr std::string_view kLeavingNode = "farandole agent: leaving node ";
// The same: this node has joined the job, which has begun already.
inline constexpr std::string_view kJoinedNode = "farandole agent: joined node ";
// The same: the group of this epoch, whose number follows, is formed now.
inline constexpr std::string_view kEpoch = "farandole agent: epoch ";
// Node 0: the job is over. If this line is missing, the launcher of node 0 was lost.
inline constexpr std::string_view kJobIsOver = "farandole agent: the job is over";
// The last line of a launcher with exit code 255, which is also that of ssh if a connection ends.
inline constexpr std::string_view kExitCodeIs255 = "farandole agent: exit code 255";

// Returns the number that follows `begin` in a line; empty if the line is another one.
inline std::optional<std::uint32_t> number_in_line(std::string_view begin, std::string_view line) {
  if (!line.starts_with(begin)) return std::nullopt;
  std::uint32_t number = 0;
  const auto [end, error] =
      std::from_chars(line.data() + begin.size(), line.data() + line.size(), number);
  const bool is_number = error == std::errc() && end == line.data() + line.size();
  return is_number ? std::optional(number) : std::nullopt;
}

// Returns the number of a node below `nodes`, apart from node 0, that follows `begin` in a line;
// empty if the line is another one.
inline std::optional<std::size_t> node_after(std::string_view begin, std::string_view line,
                                             std::size_t nodes) {
  const auto node = number_in_line(begin, line);
  return node && *node > 0 && *node < nodes ? std::optional<std::size_t>(*node) : std::nullopt;
}

}  // namespace farandole
