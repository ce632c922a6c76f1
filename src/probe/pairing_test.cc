#include "probe/pairing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace farandole {
namespace {

TEST(Pairing, EachPairMeetsOnceAndEachHostMeetsOneHostInARound) {
  for (std::size_t hosts = 0; hosts <= 17; ++hosts) {
    std::set<std::pair<std::size_t, std::size_t>> met;
    for (const Pairs& pairs : rounds_of_pairs(hosts)) {
      std::set<std::size_t> busy;
      for (const auto& [one, other] : pairs) {
        EXPECT_LT(std::max(one, other), hosts);
        EXPECT_TRUE(busy.insert(one).second) << hosts << " hosts";
        EXPECT_TRUE(busy.insert(other).second) << hosts << " hosts";
        EXPECT_TRUE(met.insert(std::minmax(one, other)).second) << hosts << " hosts";
      }
    }
    EXPECT_EQ(met.size(), hosts * (hosts > 0 ? hosts - 1 : 0) / 2);
  }
}

TEST(Pairing, HasAsFewRoundsAsPossible) {
  EXPECT_EQ(rounds_of_pairs(2).size(), 1U);
  EXPECT_EQ(rounds_of_pairs(5).size(), 5U);
  EXPECT_EQ(rounds_of_pairs(8).size(), 7U);
}

}  // namespace
}  // namespace farandole
