// The cores of this host that this process may use, and which of them are close to each other.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace farandole {

struct Core {
  // Equal for all cores of one socket. If one NUMA node has cores of several sockets, the node
  // counts as one socket. Many virtual machines give each core a socket of its own.
  int socket = 0;
  int node = 0;                       // the NUMA node; 0 if the kernel does not say
  std::vector<int> hardware_threads;  // those that may be used, in ascending order; never empty
};

// Returns the text of a file; empty if the file does not exist.
using FileReader = std::function<std::optional<std::string>(const std::string& path)>;

// Returns the cores of the hardware threads in `usable_threads`, ordered by socket, node and
// hardware thread, so that neighbours in the list are close to each other. If `read_file` finds no
// files in /sys/devices/system, each hardware thread counts as a core, and there is one socket. The
// result depends only on the arguments and on what `read_file` returns.
std::vector<Core> find_cores(const std::vector<int>& usable_threads, const FileReader& read_file);

// The cores that the calling thread may use. Reads system files at every call.
std::vector<Core> own_cores();

// How many sockets these cores have.
int count_sockets(const std::vector<Core>& cores);

}  // namespace farandole
