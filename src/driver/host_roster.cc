#include "driver/host_roster.h"

#include <algorithm>
#include <cstddef>

#include "nodes/node_layout.h"

namespace farandole {
namespace {

bool is_same_host(const HostEntry& left, const HostEntry& right) {
  return left.name == right.name && left.user == right.user && left.slots == right.slots;
}

std::string key_of(const HostEntry& host) { return host.user + "@" + host.name; }

}  // namespace

HostRoster::HostRoster(const std::vector<HostEntry>& hosts) {
  for (const HostEntry& host : hosts)
    nodes_.push_back({.host = host, .has_joined = true, .was_used = true});
}

HostRoster::Changes HostRoster::update(const std::vector<HostEntry>& listed_hosts) {
  Changes changes;
  for (int node = 1; node < nodes(); ++node) {
    const bool is_listed = std::ranges::any_of(
        listed_hosts, [&](const HostEntry& host) { return is_same_host(host, at(node).host); });
    if (is_listed == at(node).is_wanted) continue;
    at(node).is_wanted = is_listed;
    (is_listed ? changes.listed_again : changes.leaving).push_back(node);
  }
  for (const HostEntry& host : listed_hosts) {
    const bool is_known = std::ranges::any_of(
        nodes_, [&](const Node& node) { return node.is_wanted && is_same_host(node.host, host); });
    const auto number = is_known ? std::nullopt : free_number_for(host);
    if (!number) continue;
    if (*number == nodes()) nodes_.emplace_back();
    at(*number) = {.host = host, .was_used = at(*number).was_used};
    changes.addition = {*number, host, start_count_of(host)};
    break;
  }
  return changes;
}

void HostRoster::node_joined(int node) {
  at(node).has_joined = at(node).was_used = true;
  start_counts_.erase(key_of(at(node).host));
}

void HostRoster::launcher_started(int node) {
  at(node).has_ended = false;
  ++start_counts_[key_of(at(node).host)];
}

int HostRoster::start_count_of(const HostEntry& host) const {
  const auto entry = start_counts_.find(key_of(host));
  return entry == start_counts_.end() ? 0 : entry->second;
}

// Returns a node number for the host. A number is free if its launcher has ended and its host is
// not wanted any more. A number is also free if its host has never joined and was tried more often
// than `host`. Two rules of node 0 limit the choice: a number that was ever used always has the
// same count of slots, and a new number is accepted only after all lower numbers were used.
std::optional<int> HostRoster::free_number_for(const HostEntry& host) const {
  for (int node = 1; node < nodes(); ++node) {
    const Node& candidate = nodes_[static_cast<std::size_t>(node)];
    const bool fits = !candidate.was_used || candidate.host.slots == host.slots;
    const bool has_priority =
        !candidate.has_joined && start_count_of(host) < start_count_of(candidate.host);
    if (candidate.has_ended && fits && (!candidate.is_wanted || has_priority)) return node;
  }
  const bool all_were_used = std::ranges::all_of(nodes_, &Node::was_used);
  return all_were_used && nodes() < kNodesMax ? std::optional(nodes()) : std::nullopt;
}

}  // namespace farandole
