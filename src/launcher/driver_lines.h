// The lines that a launcher writes to its standard output for the driver that has started it.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace farandole {

// Node 0: "listens ADDRESS…", with a space before each address. Written when node 0 begins to
// listen.
inline constexpr std::string_view kListensLine = "listens";
// Node 0: all nodes have joined. After this line, the standard output also carries the output of
// the workers.
inline constexpr std::string_view kBeginsLine = "begins";
// Node 0 of an elastic job: the connection to the node with the following number has ended.
inline constexpr std::string_view kLostNodeLine = "farandole agent: lost node ";
// Node 0 of an elastic job: the node with the following number has asked to leave the job.
inline constexpr std::string_view kLeavingNodeLine = "farandole agent: leaving node ";
// Node 0 of an elastic job: the node with the following number has joined the running job.
inline constexpr std::string_view kJoinedNodeLine = "farandole agent: joined node ";
// Node 0 of an elastic job: the group of the epoch with the following number is formed now.
inline constexpr std::string_view kEpochLine = "farandole agent: epoch ";
// Node 0: the job is over. If this line is missing, the launcher of node 0 was lost.
inline constexpr std::string_view kJobIsOverLine = "farandole agent: the job is over";
// The last line of a launcher that exits with code 255. ssh exits with the same code if a
// connection ends.
inline constexpr std::string_view kExitCode255Line = "farandole agent: exit code 255";

// Returns the number that follows `begin` in a line; empty if the line has another form.
inline std::optional<std::uint32_t> number_in_line(std::string_view begin, std::string_view line) {
  if (!line.starts_with(begin)) return std::nullopt;
  std::uint32_t number = 0;
  const auto [end, error] =
      std::from_chars(line.data() + begin.size(), line.data() + line.size(), number);
  const bool is_number = error == std::errc() && end == line.data() + line.size();
  return is_number ? std::optional(number) : std::nullopt;
}

// Returns the number of a node that follows `begin` in a line. The number is at least 1 and less
// than `nodes`. Empty if the line has another form.
inline std::optional<std::size_t> node_in_line(std::string_view begin, std::string_view line,
                                               std::size_t nodes) {
  const auto node = number_in_line(begin, line);
  return node && *node > 0 && *node < nodes ? std::optional<std::size_t>(*node) : std::nullopt;
}

}  // namespace farandole
