#include "base/rank_names.h"

#include <gtest/gtest.h>

namespace farandole {
namespace {

TEST(RankNames, ConsecutiveRanksFormARange) {
  EXPECT_EQ(ranks_text({3}), "rank 3");
  EXPECT_EQ(ranks_text({0, 1}), "ranks 0, 1");
  EXPECT_EQ(ranks_text({0, 1, 2, 5, 7, 8}), "ranks 0-2, 5, 7, 8");
}

}  // namespace
}  // namespace farandole
