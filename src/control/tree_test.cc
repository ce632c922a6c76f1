#include "control/tree.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace farandole {
namespace {

int hops_to_root(int member, const std::vector<int>& hosts) {
  int hops = 0;
  for (auto position = tree_position_of(member, hosts); position.parent; ++hops)
    position = tree_position_of(*position.parent, hosts);
  return hops;
}

TEST(Tree, OnOneHostAllMembersSendToTheCoordinator) {
  const std::vector<int> hosts(5, 7);
  for (int member = 1; member < 5; ++member) {
    const auto position = tree_position_of(member, hosts);
    EXPECT_EQ(position.parent, 0);
    EXPECT_TRUE(position.children.empty());
  }
  const auto root = tree_position_of(0, hosts);
  EXPECT_FALSE(root.parent.has_value());
  ASSERT_EQ(root.children.size(), 4U);
  for (const auto& child : root.children) {
    EXPECT_EQ(child.members_below, MemberSet(child.member));
    EXPECT_FALSE(child.is_relay);
  }
}

TEST(Tree, AGroupOfOneMemberHasNoMessages) {
  const auto position = tree_position_of(0, {0});
  EXPECT_FALSE(position.parent.has_value());
  EXPECT_TRUE(position.children.empty());
}

// The members are on random hosts. Parents and children must match, every child must send for
// exactly the members below it, and no path to the coordinator may be too long.
TEST(Tree, ReachesEveryMemberOnce) {
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {
    const auto members = 1 + random() % 150;
    const auto host_count = 1 + random() % members;
    std::vector<int> hosts;
    for (std::size_t member = 0; member < members; ++member)
      hosts.push_back(static_cast<int>(random() % host_count) * 3 - 7);
    const auto hosts_used = std::set(hosts.begin(), hosts.end()).size();
    MemberSet reached(0);
    for (std::size_t index = 0; index < members; ++index) {
      const int member = static_cast<int>(index);
      const auto position = tree_position_of(member, hosts);
      EXPECT_EQ(position.parent.has_value(), member != 0);
      EXPECT_LE(hops_to_root(member, hosts), hosts_used == 1 ? 1 : hosts_used <= 33 ? 2 : 3);
      MemberSet members_below(member);
      for (const auto& child : position.children) {
        EXPECT_EQ(tree_position_of(child.member, hosts).parent, member);
        EXPECT_FALSE(reached.contains(child.member));
        reached.insert(child.member);
        EXPECT_FALSE(members_below.intersects(child.members_below));
        members_below.insert(child.members_below);
        EXPECT_EQ(child.is_relay, !tree_position_of(child.member, hosts).children.empty());
        EXPECT_TRUE(child.members_below.contains(child.member));
      }
      if (member == 0) {
        EXPECT_EQ(members_below.count(), static_cast<int>(members));
      }
    }
    EXPECT_EQ(reached.count(), static_cast<int>(members));
  }
}

}  // namespace
}  // namespace farandole
