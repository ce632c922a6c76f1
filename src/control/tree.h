// If the members of a group are on several hosts, the control messages travel through this tree.
// The member with the lowest number on a host is the leader of that host. Members send to their
// leader. The leaders form a tree with the coordinator (member 0) at its root; a leader has up to
// 32 leaders below it. So a message from a member to the coordinator makes at most two hops if
// there are up to 33 hosts, and at most three hops if there are up to 1,057.
#pragma once

#include <optional>
#include <vector>

#include "control/member_set.h"

namespace farandole {

struct TreeChild {
  int member;
  MemberSet members_below;  // the members for which the child sends, including itself
  bool is_relay;            // whether the child also sends for other members
};

// The place of one member in the tree.
struct TreePosition {
  std::optional<int> parent;        // empty at the coordinator
  std::vector<TreeChild> children;  // ascending
};

// Returns the place of a member. `hosts` has a number for each member's host. Members with equal
// numbers are on the same host.
TreePosition tree_position_of(int member, const std::vector<int>& hosts);

}  // namespace farandole
