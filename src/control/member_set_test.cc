#include "control/member_set.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace farandole {
namespace {

// Compares MemberSet with the same operations on a std::set.
TEST(MemberSet, DoesWhatASetDoes) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const int range = 1 + static_cast<int>(random() % 1000);
    MemberSet one;
    MemberSet other;
    std::set<int> ones;
    std::set<int> others;
    for (auto count = random() % 40; count > 0; --count) {
      const int member = static_cast<int>(random()) & 0x3ff;
      (random() % 2 == 0 ? one : other).insert(member % range);
    }
    one.for_each([&](int member) { ones.insert(member); });
    other.for_each([&](int member) { others.insert(member); });
    EXPECT_EQ(one.count(), static_cast<int>(ones.size()));
    EXPECT_EQ(one.empty(), ones.empty());
    bool all = true;
    bool any = false;
    for (int member = 0; member < range; ++member) {
      EXPECT_EQ(one.contains(member), ones.contains(member));
      all &= !others.contains(member) || ones.contains(member);
      any |= others.contains(member) && ones.contains(member);
    }
    EXPECT_EQ(one.contains(other), all);
    EXPECT_EQ(one.intersects(other), any);
    if (!ones.empty()) {
      EXPECT_EQ(one.first(), *ones.begin());
      EXPECT_EQ(one.last(), *ones.rbegin());
    }
    auto both = one;
    both.insert(other);
    auto reverse = other;
    reverse.insert(one);
    EXPECT_EQ(both, reverse);
    EXPECT_TRUE(both.contains(one));
    ones.merge(others);
    EXPECT_EQ(both.count(), static_cast<int>(ones.size()));
  }
}

TEST(MemberSet, IsReadAsItWasWritten) {
  for (const auto& members : {std::vector{0}, {63}, {64}, {8191}, {5, 70, 4000}}) {
    MemberSet set;
    for (const int member : members) set.insert(member);
    ByteWriter writer;
    set.write(writer);
    EXPECT_EQ(writer.size(), set.bytes());
    const auto bytes = writer.take();
    ByteReader reader(bytes);
    EXPECT_EQ(MemberSet::read(reader), set);
    EXPECT_TRUE(reader.at_end());
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      ByteReader cut(std::span<const std::byte>(bytes).first(size));
      EXPECT_TRUE(MemberSet::read(cut).empty());
    }
  }
}

}  // namespace
}  // namespace farandole
