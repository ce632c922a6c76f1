// HostRoster: the hosts of an elastic job by node number. It gets each new list of the hosts that
// the job may use, and returns which nodes leave, come back or are added. It is a pure state
// machine.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "remote/host_list.h"

namespace farandole {

// Node 0 stays even if its host is not listed any more.
class HostRoster {
 public:
  // These hosts are the nodes 0, 1, … of the job.
  explicit HostRoster(const std::vector<HostEntry>& hosts);

  struct Changes {
    std::vector<int> leaving{};       // these nodes must leave the job
    std::vector<int> listed_again{};  // these nodes had to leave, but are listed again
    // This host becomes the node with this number. The number is new, or the launcher of the node
    // with this number has ended.
    struct Addition {
      int node = 0;
      HostEntry host{};
      int failed_starts = 0;  // how many starts of its launcher have failed
    };
    std::optional<Addition> addition{};
  };
  // `listed_hosts` are the hosts that the job may use now. A host whose number of slots has changed
  // counts as another host. At most one host is added at a time, because node 0 accepts new nodes
  // in the order of their numbers.
  Changes update(const std::vector<HostEntry>& listed_hosts);

  void launcher_started(int node);
  void launcher_ended(int node) { at(node).has_ended = true; }
  void node_joined(int node);
  bool is_wanted(int node) const { return nodes_.at(static_cast<std::size_t>(node)).is_wanted; }
  int nodes() const { return static_cast<int>(nodes_.size()); }

 private:
  struct Node {
    HostEntry host;
    bool is_wanted = true;
    bool has_ended = false;
    bool has_joined = false;  // this host has joined with this number
    bool was_used = false;    // this host or an earlier host has joined with this number
  };

  Node& at(int node) { return nodes_.at(static_cast<std::size_t>(node)); }
  int start_count_of(const HostEntry& host) const;
  std::optional<int> free_number_for(const HostEntry& host) const;

  std::vector<Node> nodes_;
  // How often each host was started since it last joined.
  std::map<std::string, int> start_counts_;
};

}  // namespace farandole
