// Tests how many messages agreement takes at scale; the counts are the same on every machine. The
// times are in docs/simulator.md.
#include "scale.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <string>

namespace farandole::sim {
namespace {

constexpr int kTensors = 32;

int log2_rounded_up(int members) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(members - 1)));
}

class Scale : public testing::TestWithParam<int> {};

TEST_P(Scale, PredictedStepsCostNoMessage) {
  const auto costs = measure_scale(GetParam(), kTensors);
  for (const auto& cost : {costs.predicted, costs.planned}) {
    EXPECT_EQ(cost.messages, 0U);
    EXPECT_EQ(cost.bytes, 0U);
    EXPECT_EQ(cost.hops, 0);
  }
}

// Every follower announces once, and every follower receives the decisions once.
TEST_P(Scale, LearningTakesTwoHops) {
  const auto members = static_cast<std::uint64_t>(GetParam());
  const auto costs = measure_scale(GetParam(), kTensors);
  EXPECT_EQ(costs.learning.messages, 2 * (members - 1));
  EXPECT_EQ(costs.learning.busiest_member_messages, 2 * (members - 1));
  EXPECT_EQ(costs.learning.hops, 2);
  EXPECT_LE(costs.learning.hops, 2 * log2_rounded_up(GetParam()));
}

// The stop, the reports and the answer come first, then the messages of learning. No raise is
// needed, because the coordinator has seen the misprediction itself.
TEST_P(Scale, AMispredictionTakesThreeMoreHops) {
  const auto costs = measure_scale(GetParam(), kTensors);
  EXPECT_EQ(costs.misprediction.hops, 5);
  EXPECT_LE(costs.steps_to_plan, 5);
}

struct HostCase {
  int members;
  int hosts;
};

class ScaleOfHosts : public testing::TestWithParam<HostCase> {};

// The work of the coordinator grows with the number of members of its host and of leaders below it
// (at most 32), but not with the number of members of the group.
TEST_P(ScaleOfHosts, LeadersMergeWhatTheMembersAnnounce) {
  const auto [members, hosts] = GetParam();
  const auto costs = measure_scale(members, kTensors, hosts);
  EXPECT_EQ(costs.predicted.messages, 0U);
  EXPECT_EQ(costs.planned.messages, 0U);
  EXPECT_LE(costs.learning.hops, 2 * (hosts <= 33 ? 2 : 3));
  EXPECT_LE(costs.learning.hops / 2, log2_rounded_up(hosts) + 2);
  const auto neighbours = std::uint64_t{static_cast<unsigned>(members / hosts + 32)};
  EXPECT_LE(costs.learning.busiest_member_messages, 6 * neighbours);
  EXPECT_LE(costs.misprediction.busiest_member_messages, 32 * neighbours);
}

INSTANTIATE_TEST_SUITE_P(Hosts, ScaleOfHosts,
                         testing::Values(HostCase{16, 2}, HostCase{64, 64}, HostCase{1024, 16},
                                         HostCase{1024, 128}),
                         [](const auto& instance) {
                           return std::to_string(instance.param.members) + "On" +
                                  std::to_string(instance.param.hosts);
                         });

INSTANTIATE_TEST_SUITE_P(Members, Scale, testing::Values(2, 8, 64, 1024),
                         testing::PrintToStringParamName());

TEST(HorovodModel, CountsTheHopsAndBytesOfItsCollectives) {
  EXPECT_EQ(horovod_cached_mpi(1024).hops, 10U);
  EXPECT_EQ(horovod_cached_gloo(1024).hops, 2046U);
  EXPECT_EQ(horovod_uncached_mpi(1024, 161).hops, 40U);
  // 13 MB go to the root, and 13 MB come back.
  EXPECT_EQ(horovod_uncached_mpi(1024, 161).bytes, 2U * 1023 * (161 * 80 + 4));
}

}  // namespace
}  // namespace farandole::sim
