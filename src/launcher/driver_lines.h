// The lines that a launcher writes to its standard output for the driver that has started it.
#pragma once

#include <string_view>

namespace farandole {

// Node 0: "listens ADDRESS…", with a space before each address, as soon as it listens.
inline constexpr std::string_view kListens = "listens";
// Node 0: all nodes have joined. From then on, the standard output is that of the workers.
inline constexpr std::string_view kBegins = "begins";
// Node 0 of an elastic job: the connection to this node, whose number follows, has ended.
inline constexpr std::string_view kLostNode = "farandole agent: lost node ";
// The same: this node has joined the job, which has begun already.
inline constexpr std::string_view kJoinedNode = "farandole agent: joined node ";
// The last line of a launcher with exit code 255, which is also that of ssh if a connection ends.
inline constexpr std::string_view kExitCodeIs255 = "farandole agent: exit code 255";

}  // namespace farandole
