#include "driver/host_roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace farandole {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

HostEntry host(const char* name, int slots = 2) {
  return {.name = name, .user = "", .slots = slots};
}

TEST(HostRoster, TheSameListChangesNothing) {
  HostRoster roster({host("a"), host("b")});
  const auto changes = roster.update({host("b"), host("a")});
  EXPECT_THAT(changes.leaving, IsEmpty());
  EXPECT_THAT(changes.listed_again, IsEmpty());
  EXPECT_FALSE(changes.addition.has_value());
}

TEST(HostRoster, ANewHostGetsTheNextNodeNumber) {
  HostRoster roster({host("a")});
  const auto changes = roster.update({host("a"), host("b"), host("c")});
  ASSERT_TRUE(changes.addition.has_value());
  EXPECT_EQ(changes.addition->node, 1);
  EXPECT_EQ(changes.addition->host.name, "b");
  EXPECT_FALSE(roster.update({host("a"), host("b"), host("c")}).addition.has_value())
      << "node 1 has not joined yet";
  roster.node_joined(1);
  EXPECT_EQ(roster.update({host("a"), host("b"), host("c")}).addition->node, 2);
}

TEST(HostRoster, AHostThatIsNotListedLeavesAndComesBack) {
  HostRoster roster({host("a"), host("b")});
  EXPECT_THAT(roster.update({host("a")}).leaving, ElementsAre(1));
  EXPECT_FALSE(roster.is_wanted(1));
  EXPECT_THAT(roster.update({host("a")}).leaving, IsEmpty());
  EXPECT_THAT(roster.update({host("a"), host("b")}).listed_again, ElementsAre(1));
  EXPECT_TRUE(roster.is_wanted(1));
}

TEST(HostRoster, Node0Stays) {
  HostRoster roster({host("a"), host("b")});
  EXPECT_THAT(roster.update({host("b")}).leaving, IsEmpty());
}

TEST(HostRoster, AHostWithOtherSlotsIsAnotherHost) {
  HostRoster roster({host("a"), host("b", 2)});
  const auto changes = roster.update({host("a"), host("b", 3)});
  EXPECT_THAT(changes.leaving, ElementsAre(1));
  EXPECT_EQ(changes.addition->node, 2) << "node 1 has not left yet";
}

TEST(HostRoster, ANumberIsUsedAgainByAHostWithAsManySlots) {
  HostRoster roster({host("a"), host("b"), host("c", 3)});
  EXPECT_THAT(roster.update({host("a")}).leaving, ElementsAre(1, 2));
  roster.launcher_ended(1);
  roster.launcher_ended(2);
  const auto changes = roster.update({host("a"), host("d", 3)});
  EXPECT_EQ(changes.addition->node, 2);
}

TEST(HostRoster, AHostThatNeverJoinsDoesNotBlockTheOthers) {
  HostRoster roster({host("a")});
  const std::vector<HostEntry> listed{host("a"), host("broken"), host("good", 5)};
  EXPECT_EQ(roster.update(listed).addition->host.name, "broken");
  roster.launcher_started(1);
  EXPECT_FALSE(roster.update(listed).addition.has_value());
  roster.launcher_ended(1);
  const auto changes = roster.update(listed);
  EXPECT_EQ(changes.addition->host.name, "good");
  EXPECT_EQ(changes.addition->node, 1);
  roster.launcher_started(1);
  roster.node_joined(1);
  EXPECT_EQ(roster.update(listed).addition->host.name, "broken");
  EXPECT_EQ(roster.update(listed).addition, std::nullopt);
}

TEST(HostRoster, AnUnusedNumberIsFreeWhenItsHostIsNotListed) {
  HostRoster roster({host("a")});
  for (int i = 0; i < 3; ++i) {  // b joins, leaves and comes back
    const auto added = roster.update({host("a"), host("b")}).addition;
    EXPECT_EQ(added.has_value(), i == 0);
    EXPECT_EQ(added ? added->failed_starts : 0, 0);
    roster.launcher_started(1);
    roster.node_joined(1);
    (void)roster.update({host("a")});
    roster.launcher_ended(1);
  }
  EXPECT_EQ(roster.update({host("a"), host("x", 3)}).addition->node, 2);
  roster.launcher_started(2);
  roster.launcher_ended(2);
  EXPECT_EQ(roster.update({host("a"), host("b", 4)}).addition->node, 2);
}

TEST(HostRoster, ANumberKeepsItsSlotsIfTheNextHostDoesNotJoin) {
  HostRoster roster({host("a"), host("b", 2)});
  (void)roster.update({host("a")});
  roster.launcher_ended(1);
  const auto added = roster.update({host("a"), host("broken", 2)}).addition;
  EXPECT_EQ(added->node, 1);
  roster.launcher_started(1);
  EXPECT_EQ(roster.update({host("a"), host("broken", 2), host("c", 3)}).addition->node, 2)
      << "node 0 knows node 1, so it accepts node 2";
  roster.launcher_started(2);
  roster.node_joined(2);
  roster.launcher_ended(1);
  (void)roster.update({host("a"), host("c", 3)});
  EXPECT_EQ(roster.update({host("a"), host("c", 3), host("d", 3)}).addition->node, 3)
      << "node 0 would reject node 1 with 3 slots";
  roster.launcher_started(3);
  roster.node_joined(3);
  EXPECT_EQ(roster.update({host("a"), host("c", 3), host("d", 3), host("e", 2)}).addition->node, 1);
}

TEST(HostRoster, HostsThatFailTakeTurns) {
  HostRoster roster({host("a")});
  const std::vector<HostEntry> listed{host("a"), host("x"), host("y")};
  std::vector<std::string> names;
  std::vector<int> failed_starts;
  for (int i = 0; i < 4; ++i) {
    const auto added = roster.update(listed).addition;
    ASSERT_TRUE(added.has_value());
    names.push_back(added->host.name);
    failed_starts.push_back(added->failed_starts);
    roster.launcher_started(1);
    roster.launcher_ended(1);
    if (i == 0) continue;
    EXPECT_FALSE(roster.update(listed).addition.has_value()) << "both were tried equally often";
    roster.launcher_started(1);  // again
    roster.launcher_ended(1);
  }
  EXPECT_THAT(names, ElementsAre("x", "y", "x", "y"));
  EXPECT_THAT(failed_starts, ElementsAre(0, 0, 1, 2));
}

}  // namespace
}  // namespace farandole
