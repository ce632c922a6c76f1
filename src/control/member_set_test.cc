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
    MemberSet left;
    MemberSet right;
    std::set<int> in_left;
    std::set<int> in_right;
    for (auto count = random() % 40; count > 0; --count) {
      const int member = static_cast<int>(random()) & 0x3ff;
      (random() % 2 == 0 ? left : right).insert(member % range);
    }
    left.for_each([&](int member) { in_left.insert(member); });
    right.for_each([&](int member) { in_right.insert(member); });
    EXPECT_EQ(left.count(), static_cast<int>(in_left.size()));
    EXPECT_EQ(left.empty(), in_left.empty());
    bool all = true;
    bool any = false;
    for (int member = 0; member < range; ++member) {
      EXPECT_EQ(left.contains(member), in_left.contains(member));
      all &= !in_right.contains(member) || in_left.contains(member);
      any |= in_right.contains(member) && in_left.contains(member);
    }
    EXPECT_EQ(left.contains(right), all);
    EXPECT_EQ(left.intersects(right), any);
    if (!in_left.empty()) {
      EXPECT_EQ(left.first(), *in_left.begin());
      EXPECT_EQ(left.last(), *in_left.rbegin());
    }
    auto both = left;
    both.insert(right);
    auto reverse = right;
    reverse.insert(left);
    EXPECT_EQ(both, reverse);
    EXPECT_TRUE(both.contains(left));
    in_left.merge(in_right);
    EXPECT_EQ(both.count(), static_cast<int>(in_left.size()));
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
