#include "transport/shm/shared_heap.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>
#include <vector>

namespace farandole {
namespace {

bool all_zero(const std::byte* begin, std::size_t bytes) {
  return std::all_of(begin, begin + bytes, [](std::byte b) { return b == std::byte{0}; });
}

std::ptrdiff_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

TEST(SharedHeap, BlocksAreAlignedAndDisjoint) {
  const auto heap = SharedHeap::create().value();
  std::vector<std::shared_ptr<std::byte>> blocks;
  for (const std::size_t bytes : {0U, 1U, 127U, 128U, 129U, 100'000U}) {
    auto block = heap->allocate(bytes).value();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.get()) % kHeapAlignment, 0u);
    EXPECT_TRUE(all_zero(block.get(), bytes));
    std::fill_n(block.get(), bytes, std::byte{0xff});
    blocks.push_back(std::move(block));
  }
}

TEST(SharedHeap, FreedMemoryComesBackZeroed) {
  const auto heap = SharedHeap::create().value();
  auto block = heap->allocate(10'000).value();
  const auto* address = block.get();
  std::memset(block.get(), 0xff, 10'000);
  block.reset();
  block = heap->allocate(20'000).value();  // partly used before
  EXPECT_EQ(block.get(), address);
  EXPECT_TRUE(all_zero(block.get(), 20'000));
}

TEST(SharedHeap, NeighboursMergeInAnyOrder) {
  const auto heap = SharedHeap::create().value();
  const std::size_t third = kGrowthBytes / 4;
  for (const std::vector<int>& order : {std::vector{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}}) {
    std::vector<std::shared_ptr<std::byte>> blocks;
    for (int i = 0; i < 3; ++i) blocks.push_back(heap->allocate(third).value());
    const auto* first = blocks[0].get();
    for (const int i : order) blocks[static_cast<std::size_t>(i)].reset();
    EXPECT_EQ(heap->allocate(kGrowthBytes).value().get(), first);
  }
}

TEST(SharedHeap, GrowsBeyondTheFirstSegment) {
  const auto heap = SharedHeap::create().value();
  const auto whole = heap->allocate(kGrowthBytes).value();
  const auto descriptors = open_descriptors();
  const auto small = heap->allocate(100).value();
  const auto huge = heap->allocate(2 * kGrowthBytes + 1).value();
  EXPECT_EQ(open_descriptors(), descriptors) << "memory that no peer maps needs no descriptor";
  EXPECT_TRUE(heap->location_of(whole.get(), kGrowthBytes).has_value());
  EXPECT_FALSE(heap->location_of(whole.get(), kGrowthBytes + 1).has_value());
  EXPECT_FALSE(heap->location_of(small.get(), 100).has_value());
  EXPECT_FALSE(heap->location_of(huge.get(), 1).has_value());
  huge.get()[2 * kGrowthBytes] = std::byte{1};
}

TEST(SharedHeap, ABlockOutlivesTheHeap) {
  const auto descriptors = open_descriptors();
  auto heap = SharedHeap::create().value();
  const auto block = heap->allocate(1000).value();
  heap.reset();
  EXPECT_EQ(open_descriptors(), descriptors);
  std::memset(block.get(), 1, 1000);
  EXPECT_EQ(block.get()[999], std::byte{1});
}

TEST(SharedHeap, APeerSeesTheSameBytes) {
  const auto heap = SharedHeap::create().value();
  const auto padding = heap->allocate(300).value();
  const auto block = heap->allocate(1000).value();
  const auto peer = PeerHeap::attach(heap->first_segment()).value();
  const auto location = heap->location_of(block.get() + 10, 990).value();
  block.get()[10] = std::byte{42};
  EXPECT_EQ(*peer->at(location, 1), std::byte{42});
}

TEST(SharedHeap, APeerRefusesWhatLiesOutside) {
  const auto heap = SharedHeap::create().value();
  const auto peer = PeerHeap::attach(heap->first_segment()).value();
  EXPECT_NE(peer->at(kFirstSegmentBytes - 8, 8), nullptr);
  EXPECT_EQ(peer->at(kFirstSegmentBytes - 8, 9), nullptr);
  EXPECT_EQ(peer->at(kFirstSegmentBytes + 1, 0), nullptr);
  EXPECT_EQ(peer->at(~std::uint64_t{0} - 3, 8), nullptr);
  EXPECT_EQ(peer->at(8, ~std::size_t{0} - 3), nullptr);
  const int on_the_stack = 0;
  EXPECT_FALSE(heap->location_of(&on_the_stack, 1).has_value());
}

TEST(SharedHeap, RefusesAbsurdSizes) {
  const auto heap = SharedHeap::create().value();
  EXPECT_FALSE(heap->allocate(~std::size_t{0}).ok());
  EXPECT_FALSE(heap->allocate(std::size_t{1} << 62).ok());
}

TEST(SharedHeap, AfterAForkNothingIsTouched) {
  const auto heap = SharedHeap::create().value();
  auto block = heap->allocate(1000).value();
  block.get()[0] = std::byte{5};
  heap->abandon_after_fork();
  EXPECT_FALSE(heap->first_segment().valid());
  EXPECT_EQ(block.get()[0], std::byte{5});
  block.reset();  // must not reach the lock; there is nothing to see from outside
}

TEST(SharedHeap, ManyThreadsAllocateAndFree) {
  const auto heap = SharedHeap::create().value();
  std::vector<std::jthread> threads;
  for (unsigned seed = 1; seed <= 4; ++seed)
    threads.emplace_back([&heap, seed] {
      std::mt19937 random(seed);
      std::vector<std::pair<std::shared_ptr<std::byte>, std::size_t>> blocks;
      for (int i = 0; i < 400; ++i) {
        const std::size_t bytes = random() % 5000;
        auto block = heap->allocate(bytes).value();
        ASSERT_TRUE(all_zero(block.get(), bytes));
        std::memset(block.get(), static_cast<int>(seed), bytes);
        blocks.emplace_back(std::move(block), bytes);
        if (blocks.size() < 20) continue;
        const auto victim = blocks.begin() + random() % 20;
        ASSERT_TRUE(std::all_of(victim->first.get(), victim->first.get() + victim->second,
                                [&](std::byte b) { return b == std::byte(seed); }));
        blocks.erase(victim);
      }
    });
}

}  // namespace
}  // namespace farandole
