#include "control/tree.h"

#include <algorithm>
#include <cstddef>
#include <unordered_map>

#include "base/check.h"

namespace farandole {
namespace {

constexpr std::size_t kArity = 32;

// The hosts, numbered in the order of their leaders.
struct Hosts {
  std::vector<int> leaders;  // by host
  std::vector<std::size_t> host_by_member;

  explicit Hosts(const std::vector<int>& hosts) {
    std::unordered_map<int, std::size_t> numbers;
    for (std::size_t member = 0; member < hosts.size(); ++member) {
      const auto [entry, is_new] = numbers.emplace(hosts[member], leaders.size());
      if (is_new) leaders.push_back(static_cast<int>(member));
      host_by_member.push_back(entry->second);
    }
  }

  // Whether `host` is `top` or below it in the tree.
  static bool is_below(std::size_t host, std::size_t top) {
    while (host > top) host = (host - 1) / kArity;
    return host == top;
  }
};

}  // namespace

TreePosition tree_position_of(int member, const std::vector<int>& hosts) {
  CHECK(member >= 0 && static_cast<std::size_t>(member) < hosts.size(), "the member has a host");
  const Hosts hosts_of_group(hosts);
  const auto host = hosts_of_group.host_by_member[static_cast<std::size_t>(member)];
  const int leader = hosts_of_group.leaders[host];
  if (member != leader) return {.parent = leader, .children = {}};

  TreePosition position;
  if (host > 0) position.parent = hosts_of_group.leaders[(host - 1) / kArity];
  for (std::size_t index = 0; index < hosts.size(); ++index) {
    const auto number = static_cast<int>(index);
    if (hosts_of_group.host_by_member[index] == host && number != leader)
      position.children.push_back({number, MemberSet(number), false});
  }
  const auto end = std::min(kArity * host + kArity + 1, hosts_of_group.leaders.size());
  for (std::size_t child_host = kArity * host + 1; child_host < end; ++child_host) {
    TreeChild child{hosts_of_group.leaders[child_host], {}, false};
    for (std::size_t index = 0; index < hosts.size(); ++index)
      if (Hosts::is_below(hosts_of_group.host_by_member[index], child_host))
        child.members_below.insert(static_cast<int>(index));
    child.is_relay = child.members_below.count() > 1;
    position.children.push_back(std::move(child));
  }
  std::ranges::sort(position.children, {}, &TreeChild::member);
  return position;
}

}  // namespace farandole
