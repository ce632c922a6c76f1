// HostRoster: the hosts of an elastic job by node number, and what changes when the list of hosts
// that the job may use changes. It is a pure state machine.
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
  explicit HostRoster(const std::vector<HostEntry>& first);

  struct Changes {
    std::vector<int> leave{};  // these nodes shall leave the job
    std::vector<int> back{};   // these nodes were to leave, but are listed again
    // This host becomes the node with this number. The number is new, or that of a node whose
    // launcher has ended.
    struct Addition {
      int node = 0;
      HostEntry host{};
      int tries = 0;  // how often its launcher has been started in vain
    };
    std::optional<Addition> added{};
  };
  // The hosts that the job may use now. A host whose number of slots has changed counts as another
  // host. At most one host is added at a time, because node 0 accepts new nodes in their order.
  Changes take(const std::vector<HostEntry>& listed);

  void launcher_started(int node);
  void launcher_ended(int node) { at(node).has_ended = true; }
  void joined(int node);
  bool is_wanted(int node) const { return nodes_.at(static_cast<std::size_t>(node)).is_wanted; }
  int nodes() const { return static_cast<int>(nodes_.size()); }

 private:
  struct Node {
    HostEntry host;
    bool is_wanted = true;
    bool has_ended = false;
    bool has_joined = false;  // this host
    bool was_used = false;    // a host has joined with this number, perhaps another one
  };

  Node& at(int node) { return nodes_.at(static_cast<std::size_t>(node)); }
  int tries_of(const HostEntry& host) const;
  std::optional<int> number_for(const HostEntry& host) const;

  std::vector<Node> nodes_;
  // For each host: how often it was started since it last joined.
  std::map<std::string, int> tries_;
};

}  // namespace farandole
