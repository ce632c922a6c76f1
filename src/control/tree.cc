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
  std::vector<int> leaders;            // by host
  std::vector<std::size_t> of_member;  // by member

  explicit Hosts(const std::vector<int>& hosts) {
    std::unordered_map<int, std::size_t> numbers;
    for (std::size_t member = 0; member < hosts.size(); ++member) {
      const auto [found, is_new] = numbers.emplace(hosts[member], leaders.size());
      if (is_new) leaders.push_back(static_cast<int>(member));
      of_member.push_back(found->second);
    }
  }

  // Whether `host` is `top` or below it in the tree.
  static bool is_below(std::size_t host, std::size_t top) {
    while (host > top) host = (host - 1) / kArity;
    return host == top;
  }
};

}  // namespace

TreePlace place_in_tree(int member, const std::vector<int>& hosts) {
  CHECK(member >= 0 && static_cast<std::size_t>(member) < hosts.size(), "the member has a host");
  const Hosts all(hosts);
  const auto host = all.of_member[static_cast<std::size_t>(member)];
  const int leader = all.leaders[host];
  if (member != leader) return {.parent = leader, .children = {}};

  TreePlace place;
  if (host > 0) place.parent = all.leaders[(host - 1) / kArity];
  for (std::size_t other = 0; other < hosts.size(); ++other) {
    const auto number = static_cast<int>(other);
    if (all.of_member[other] == host && number != leader)
      place.children.push_back({number, MemberSet(number), false});
  }
  const auto end = std::min(kArity * host + kArity + 1, all.leaders.size());
  for (std::size_t child_host = kArity * host + 1; child_host < end; ++child_host) {
    TreeChild child{all.leaders[child_host], {}, false};
    for (std::size_t other = 0; other < hosts.size(); ++other)
      if (Hosts::is_below(all.of_member[other], child_host))
        child.below.insert(static_cast<int>(other));
    child.relays = child.below.count() > 1;
    place.children.push_back(std::move(child));
  }
  std::ranges::sort(place.children, {}, &TreeChild::member);
  return place;
}

}  // namespace farandole
