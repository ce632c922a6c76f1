#include "workers/core_topology.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/cores.h"
#include "base/system_files.h"

namespace farandole {
namespace {

constexpr const char* kSystemFolder = "/sys/devices/system/";

struct CorePosition {
  int package = 0;
  int node = 0;
  int first_sibling = 0;  // identifies the core: its lowest hardware thread, usable or not
};

std::vector<int> read_list(const FileReader& read_file, const std::string& path) {
  return numbers_in_list(read_file(path).value_or(""));
}

// Returns the NUMA node of each hardware thread. Empty if the kernel knows no nodes.
std::map<int, int> nodes_of_hardware_threads(const FileReader& read_file) {
  const std::string folder = std::string(kSystemFolder) + "node/";
  std::map<int, int> nodes;
  for (const int node : read_list(read_file, folder + "online"))
    for (const int thread :
         read_list(read_file, folder + "node" + std::to_string(node) + "/cpulist"))
      nodes[thread] = node;
  return nodes;
}

CorePosition position_of(int thread, const std::map<int, int>& nodes, const FileReader& read_file) {
  const std::string folder =
      std::string(kSystemFolder) + "cpu/cpu" + std::to_string(thread) + "/topology/";
  const auto package = numbers_in_list(read_file(folder + "physical_package_id").value_or(""));
  const auto siblings = read_list(read_file, folder + "thread_siblings_list");
  const auto node = nodes.find(thread);
  return {.package = package.empty() ? 0 : package.front(),
          .node = node == nodes.end() ? 0 : node->second,
          .first_sibling = siblings.empty() ? thread : siblings.front()};
}

}  // namespace

std::vector<Core> find_cores(const std::vector<int>& usable_threads, const FileReader& read_file) {
  const std::map<int, int> nodes = nodes_of_hardware_threads(read_file);
  std::map<int, CorePosition> positions;
  std::map<int, std::set<int>> packages_of_node;
  for (const int thread : usable_threads) {
    positions[thread] = position_of(thread, nodes, read_file);
    packages_of_node[positions[thread].node].insert(positions[thread].package);
  }
  // The key has the socket, the node and the first sibling. If a node has several packages, the
  // node counts as the socket. Otherwise, the package is the socket. Sockets that are nodes come
  // first.
  std::map<std::tuple<int, int, int, int>, std::vector<int>> threads_of_core;
  for (const auto& [thread, position] : positions) {
    const bool is_node = !nodes.empty() && packages_of_node[position.node].size() > 1;
    threads_of_core[{is_node ? 0 : 1, is_node ? position.node : position.package, position.node,
                     position.first_sibling}]
        .push_back(thread);
  }
  std::vector<Core> cores;
  std::map<std::pair<int, int>, int> sockets;
  for (auto& [key, threads] : threads_of_core) {
    const auto& [kind, number, node, sibling] = key;
    const auto socket = sockets.emplace(std::pair(kind, number), static_cast<int>(sockets.size()));
    cores.push_back(
        {.socket = socket.first->second, .node = node, .hardware_threads = std::move(threads)});
  }
  return cores;
}

std::vector<Core> own_cores() {
  return find_cores(usable_hardware_threads(),
                    [](const std::string& path) { return file_text(path); });
}

int count_sockets(const std::vector<Core>& cores) {
  return cores.empty() ? 0 : cores.back().socket + 1;
}

}  // namespace farandole
