#include "nodes/node_layout.h"

#include <gtest/gtest.h>

namespace farandole {
namespace {

TEST(NodeLayout, OneNodeHasAllRanks) {
  const NodeLayout layout{.node = 0, .workers = {3}};
  EXPECT_EQ(layout.size(), 3);
  EXPECT_EQ(layout.first_rank(), 0);
  EXPECT_EQ(layout.rank_of(2), 2);
  EXPECT_EQ(layout.cross_rank(2), 0);
  EXPECT_EQ(layout.cross_size(2), 1);
}

TEST(NodeLayout, RanksAreNumberedNodeByNode) {
  const NodeLayout layout{.node = 1, .workers = {3, 1, 2}};
  EXPECT_EQ(layout.nodes(), 3);
  EXPECT_EQ(layout.size(), 6);
  EXPECT_EQ(layout.local_size(), 1);
  EXPECT_EQ(layout.first_rank(), 3);
  const NodeLayout last_node{.node = 2, .workers = {3, 1, 2}};
  EXPECT_EQ(last_node.rank_of(1), 5);
}

TEST(NodeLayout, CrossRanksSkipNodesWithFewerWorkers) {
  const NodeLayout last_node{.node = 2, .workers = {3, 1, 2}};
  EXPECT_EQ(last_node.cross_rank(0), 2);
  EXPECT_EQ(last_node.cross_size(0), 3);
  EXPECT_EQ(last_node.cross_rank(1), 1);
  EXPECT_EQ(last_node.cross_size(1), 2);
  EXPECT_EQ((NodeLayout{.node = 0, .workers = {3, 1, 2}}.cross_size(2)), 1);
}

TEST(NodeLayout, EveryRankOccursOnce) {
  const std::vector<int> workers{2, 5, 1, 3};
  int expected_rank = 0;
  for (int node = 0; node < 4; ++node) {
    const NodeLayout layout{.node = node, .workers = workers};
    for (int local_rank = 0; local_rank < layout.local_size(); ++local_rank) {
      EXPECT_EQ(layout.rank_of(local_rank), expected_rank++);
      EXPECT_LT(layout.cross_rank(local_rank), layout.cross_size(local_rank));
    }
  }
}

}  // namespace
}  // namespace farandole
