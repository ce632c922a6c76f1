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
    std::set<int> first_members;
    std::set<int> second_members;
    for (auto count = random() % 40; count > 0; --count) {
      const int member = static_cast<int>(random()) & 0x3ff;
      (random() % 2 == 0 ? first_set : second_set).insert(member % range);
    }
    first_set.for_each([&](int member) { first_members.insert(member); });
    second_set.for_each([&](int member) { second_members.insert(member); });
    EXPECT_EQ(first_set.count(), static_cast<int>(first_members.size()));
    EXPECT_EQ(first_set.empty(), first_members.empty());
    bool contains_all = true;
    bool intersects_any = false;
    for (int member = 0; member < range; ++member) {
      EXPECT_EQ(first_set.contains(member), first_members.contains(member));
      contains_all &= !second_members.contains(member) || first_members.contains(member);
      intersects_any |= second_members.contains(member) && first_members.contains(member);
    }
    EXPECT_EQ(first_set.contains(second_set), contains_all);
    EXPECT_EQ(first_set.intersects(second_set), intersects_any);
    if (!first_members.empty()) {
      EXPECT_EQ(first_set.first(), *first_members.begin());
      EXPECT_EQ(first_set.last(), *first_members.rbegin());
    }
    auto joint_set = first_set;
    joint_set.insert(second_set);
    auto reversed_joint_set = second_set;
    reversed_joint_set.insert(first_set);
    EXPECT_EQ(joint_set, reversed_joint_set);
    EXPECT_TRUE(joint_set.contains(first_set));
    first_members.merge(second_members);
    EXPECT_EQ(joint_set.count(), static_cast<int>(first_members.size()));
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
      ByteReader cut_reader(std::span<const std::byte>(bytes).first(size));
      EXPECT_TRUE(MemberSet::read(cut_reader).empty());
    }
  }
}

}  // namespace
}  // namespace farandole
