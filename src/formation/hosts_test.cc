#include "formation/hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace farandole {
namespace {

using ::testing::ElementsAre;

std::vector<RankInfo> ranks_on(const std::vector<int>& hosts) {
  std::vector<RankInfo> ranks;
  for (const int host : hosts)
    ranks.push_back({host, host < 0 ? "" : "host" + std::to_string(host), 0, {}});
  return ranks;
}

TEST(Hosts, AreNumberedInTheOrderOfTheirLowestRanks) {
  EXPECT_THAT(host_numbers({"b", "a", "b", "c", "a"}), ElementsAre(0, 1, 0, 2, 1));
  EXPECT_TRUE(host_numbers({}).empty());
}

TEST(Hosts, CountTheCoresOfTheirRanksOnce) {
  auto ranks = ranks_on({0, 0, 1, 0, -1});
  ranks[0].cores = "0-1";
  ranks[1].cores = "2-3";
  ranks[2].cores = "0-7";
  ranks[3].cores = "1-2";
  ranks[4].cores = "9";
  EXPECT_EQ(cores_of_ranks(0, ranks), 4);
  EXPECT_EQ(cores_of_ranks(1, ranks), 8);
}

// The local sizes are 1, 2 and 3. For rank 1, local size times cross size happens to be the size of
// the job, although the hosts have different sizes.
TEST(Hosts, OfDifferentSizesAreNotHomogeneous) {
  const auto ranks = ranks_on({0, 1, 1, 2, 2, 2});
  for (int rank = 0; rank < 6; ++rank) EXPECT_FALSE(topology_of(rank, ranks).is_homogeneous);
  const RankTopology topology = topology_of(5, ranks);
  EXPECT_EQ(topology.local_rank, 2);
  EXPECT_EQ(topology.cross_rank, 0);
  EXPECT_EQ(topology.cross_size, 1);
  EXPECT_EQ(topology_of(4, ranks).cross_rank, 1);
  EXPECT_EQ(topology_of(4, ranks).cross_size, 2);
}

TEST(Hosts, AreNamedWithTheirRanks) {
  EXPECT_EQ(hosts_text(ranks_on({0, 0, 1, 0})), "host0 (ranks 0, 1, 3), host1 (rank 2)");
  EXPECT_EQ(hosts_text(ranks_on({0, -1, 1, -1})), "host0 (rank 0), host1 (rank 2)");
}

TEST(Hosts, NumbersThatWereNotGivenAreNotCompared) {
  const auto ranks = ranks_on({0, 0, 1});
  EXPECT_TRUE(check_given_topology({.rank = 1, .size = 3}, ranks).ok());
  EXPECT_TRUE(check_given_topology({.rank = 1, .size = 3, .local_rank = 1}, ranks).ok());
  EXPECT_TRUE(check_given_topology({.rank = 2, .size = 3, .cross_size = 2}, ranks).ok());
}

TEST(Hosts, EachGivenNumberIsCompared) {
  const auto ranks = ranks_on({0, 0, 1});
  for (const RankTopology& given : {RankTopology{.rank = 1, .size = 3, .local_rank = 0},
                                    RankTopology{.rank = 1, .size = 3, .local_size = 3},
                                    RankTopology{.rank = 1, .size = 3, .cross_rank = 1},
                                    RankTopology{.rank = 1, .size = 3, .cross_size = 2}})
    EXPECT_EQ(check_given_topology(given, ranks).code(), StatusCode::kFixCall);
  EXPECT_EQ(
      check_given_topology({.rank = 2, .size = 3, .local_rank = 2, .local_size = 3}, ranks),
      Status::fix_call(
          "rank 2 was started as local rank 2 of 3 and cross rank 1 of 2, but was found to be "
          "local "
          "rank 0 of 1 and cross rank 1 of 2: the ranks that share memory are on host0 (ranks 0, "
          "1), "
          "host1 (rank 2). Start the ranks of a host so that they can pass descriptors to each "
          "other, in one container and under one launcher, or unset the variables with the "
          "expected "
          "numbers (FARANDOLE_LOCAL_RANK, FARANDOLE_LOCAL_SIZE, FARANDOLE_CROSS_RANK, "
          "FARANDOLE_CROSS_SIZE, or those of the launcher that you use)"));
}

}  // namespace
}  // namespace farandole
