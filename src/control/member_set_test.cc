#include "control/member_set.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace farandole {
namespace {

// Compares MemberSet with the same operations on a std::set.
TEST(MemberSet, BehavesLikeAStdSet) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const int range = 1 + static_cast<int>(random() % 1000);
    MemberSet first_set;
    MemberSet second_set;
    std::set<int> in_first;
    std::set<int> in_second;
    for (auto count = random() % 40; count > 0; --count) {
      const int member = static_cast<int>(random()) & 0x3ff;
      (random() % 2 == 0 ? first_set : second_set).insert(member % range);
    }
    first_set.for_each([&](int member) { in_first.insert(member); });
    second_set.for_each([&](int member) { in_second.insert(member); });
    EXPECT_EQ(first_set.count(), static_cast<int>(in_first.size()));
    EXPECT_EQ(first_set.empty(), in_first.empty());
    bool all = true;
    bool any = false;
    for (int member = 0; member < range; ++member) {
      EXPECT_EQ(first_set.contains(member), in_first.contains(member));
      all &= !in_second.contains(member) || in_first.contains(member);
      any |= in_second.contains(member) && in_first.contains(member);
    }
    EXPECT_EQ(first_set.contains(second_set), all);
    EXPECT_EQ(first_set.intersects(second_set), any);
    if (!in_first.empty()) {
      EXPECT_EQ(first_set.first(), *in_first.begin());
      EXPECT_EQ(first_set.last(), *in_first.rbegin());
    }
    auto joint_set = first_set;
    joint_set.insert(second_set);
    auto reverse = second_set;
    reverse.insert(first_set);
    EXPECT_EQ(joint_set, reverse);
    EXPECT_TRUE(joint_set.contains(first_set));
    in_first.merge(in_second);
    EXPECT_EQ(joint_set.count(), static_cast<int>(in_first.size()));
  }
}

TEST(MemberSet, DecodingReturnsTheEncodedSet) {
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
