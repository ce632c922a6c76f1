#include "transport/shm/arena.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace farandole {
namespace {

class ArenaTest : public testing::Test {
 protected:
  std::ptrdiff_t offset_of(const std::byte* block) const { return block - memory_.data(); }

  std::array<std::byte, 1000> memory_{};
  Arena arena_{memory_};
};

TEST_F(ArenaTest, TakesTheFirstFreeRangeThatFits) {
  EXPECT_EQ(offset_of(arena_.allocate(100, 1)), 0);
  auto* const second = arena_.allocate(200, 1);
  EXPECT_EQ(offset_of(arena_.allocate(100, 1)), 300);
  arena_.release(second);
  EXPECT_EQ(offset_of(arena_.allocate(600, 1)), 400);
  EXPECT_EQ(offset_of(arena_.allocate(150, 1)), 100);
  EXPECT_EQ(arena_.allocate(51, 1), nullptr);
  EXPECT_EQ(offset_of(arena_.allocate(50, 1)), 250);
}

TEST_F(ArenaTest, GapsFromAlignmentStayFree) {
  auto* const first = arena_.allocate(10, 1);
  auto* const aligned = arena_.allocate(100, 64);
  EXPECT_EQ(offset_of(aligned), 64);
  EXPECT_EQ(offset_of(arena_.allocate(54, 1)), 10);
  EXPECT_EQ(arena_.allocate(840, 64), nullptr);
  EXPECT_EQ(offset_of(arena_.allocate(836, 1)), 164);
  arena_.release(first);
  arena_.release(aligned);
}

TEST_F(ArenaTest, NeighboursMergeInAnyOrder) {
  for (const std::vector<std::size_t>& order :
       {std::vector<std::size_t>{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}}) {
    std::vector<std::byte*> blocks;
    for (int i = 0; i < 3; ++i) blocks.push_back(arena_.allocate(250, 1));
    for (const std::size_t i : order) arena_.release(blocks[i]);
    auto* const whole_memory = arena_.allocate(1000, 1);
    EXPECT_EQ(offset_of(whole_memory), 0);
    arena_.release(whole_memory);
  }
}

TEST_F(ArenaTest, AKeptBlockIsReusedOnlyForItsSize) {
  auto* const block = arena_.allocate(400, 1);
  arena_.keep(block);
  EXPECT_EQ(arena_.kept_bytes(), 400u);
  EXPECT_EQ(arena_.reuse_kept(300), nullptr);
  EXPECT_EQ(arena_.allocate(601, 1), nullptr);
  EXPECT_EQ(arena_.reuse_kept(400), block);
  EXPECT_EQ(arena_.kept_bytes(), 0u);
  EXPECT_EQ(arena_.reuse_kept(400), nullptr);
}

TEST_F(ArenaTest, TheOldestKeptBlockComesFirstAndIsNotReusedUntilGivenBack) {
  auto* const first = arena_.allocate(400, 1);
  auto* const second = arena_.allocate(400, 1);
  arena_.keep(second);
  arena_.keep(first);
  const auto evicted_block = arena_.evict_oldest_kept();
  EXPECT_EQ(evicted_block.data(), second);
  EXPECT_EQ(evicted_block.size(), 400u);
  EXPECT_EQ(arena_.kept_bytes(), 400u);
  EXPECT_EQ(arena_.allocate(400, 1), nullptr);
  arena_.release(second);
  EXPECT_EQ(arena_.allocate(400, 1), second);
  EXPECT_EQ(arena_.evict_oldest_kept().data(), first);
  EXPECT_TRUE(arena_.evict_oldest_kept().empty());
}

TEST_F(ArenaTest, KnowsWhichAddressesItContains) {
  EXPECT_TRUE(arena_.holds(memory_.data()));
  EXPECT_FALSE(arena_.holds(memory_.data() + memory_.size()));
  Arena empty_arena({});
  EXPECT_EQ(empty_arena.allocate(1, 1), nullptr);
}

TEST_F(ArenaTest, GivingBackTwiceIsABug) {
  auto* const block = arena_.allocate(100, 1);
  arena_.release(block);
  EXPECT_DEATH(arena_.release(block), "released once");
  EXPECT_DEATH(arena_.keep(block), "released once");
  arena_.keep(arena_.allocate(100, 1));
  EXPECT_DEATH(arena_.release(block), "released once");
  EXPECT_DEATH(arena_.keep(block), "released once");
}

}  // namespace
}  // namespace farandole
