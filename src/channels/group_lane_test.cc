#include "channels/group_lane.h"

#include <gtest/gtest.h>

#include "channels/channel_pair_in_test.h"

namespace farandole {
namespace {

// Three hosts: ours is host 1.
TEST(GroupLane, ReachesTheMemberOnEachOtherHost) {
  ChannelPair to_first(1);
  ChannelPair to_last(2);
  GroupLane lane(4, {&to_first.left, nullptr, &to_last.left});
  const StepIdentity step{.generation = 1, .sequence = 2, .id = 3};
  const Bytes note(3, std::byte{1});
  lane.send_entry(step, note);
  to_last.right.send_entry(4, step, note);
  for (auto* const pair : {&to_first, &to_last}) pair->advance_until_idle();
  for (auto* const pair : {&to_first, &to_last}) ASSERT_NE(pair->right.entry(4, step), nullptr);
  EXPECT_FALSE(lane.entry(0, step).has_value());
  ASSERT_TRUE(lane.entry(2, step).has_value());
  EXPECT_EQ(lane.entry(2, step)->id, 3U);

  const Bytes data(100, std::byte{5});
  Bytes target(100);
  lane.begin(step);
  to_first.right.begin(4, step);
  to_first.right.receive(4, target);
  lane.send(0, data);
  to_first.advance_until_idle();
  EXPECT_EQ(target, data);
  EXPECT_EQ(lane.bytes_sent(0), 100U);
  EXPECT_EQ(lane.bytes_sent(2), 0U);
  EXPECT_EQ(lane.bytes_received(0), 0U);
}

}  // namespace
}  // namespace farandole
