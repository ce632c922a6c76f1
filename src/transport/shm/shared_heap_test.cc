#include "transport/shm/shared_heap.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>
#include <vector>

#include "base/format.h"

namespace farandole {
namespace {

constexpr std::size_t kMiB = 1 << 20;
constexpr std::size_t kHeapBytes = 256 * kMiB;

bool all_zero(const std::byte* begin, std::size_t bytes) {
  return std::all_of(begin, begin + bytes, [](std::byte b) { return b == std::byte{0}; });
}

std::ptrdiff_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

TEST(SharedHeap, BlocksAreAlignedAndDisjoint) {
  const auto heap = SharedHeap::create(kHeapBytes).value();
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
  const auto heap = SharedHeap::create(kHeapBytes).value();
  auto block = heap->allocate(10'000).value();
  const auto* address = block.get();
  std::memset(block.get(), 0xff, 10'000);
  block.reset();
  block = heap->allocate(20'000).value();  // a part of this memory was used before
  EXPECT_EQ(block.get(), address);
  EXPECT_TRUE(all_zero(block.get(), 20'000));
}

// Returns how many bytes of the machine's memory the segment uses.
std::size_t bytes_in_use(const SharedHeap& heap) {
  struct stat attributes{};
  EXPECT_EQ(::fstat(heap.descriptor().get(), &attributes), 0);
  return static_cast<std::size_t>(attributes.st_blocks) * 512;
}

TEST(SharedHeap, LargeBlocksBeginAtPages) {
  const auto heap = SharedHeap::create(kHeapBytes).value();
  const auto small = heap->allocate(100).value();
  const auto large = heap->allocate(kLargeBlockBytes + 1).value();
  const auto second = heap->allocate(kLargeBlockBytes).value();
  const auto huge = heap->allocate(3 * kMiB).value();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large.get()) % 4096, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(second.get()) % 4096, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(huge.get()) % kHugePageBytes, 0u);
}

TEST(SharedHeap, AFullHeapGivesMemoryThatPeersCannotSee) {
  const auto heap = SharedHeap::create(32 * kMiB).value();
  const auto descriptors = open_descriptors();
  const auto largest = heap->allocate(30 * kMiB).value();
  EXPECT_TRUE(heap->location_of(largest.get(), 30 * kMiB).has_value());
  const auto private_block = heap->allocate(30 * kMiB).value();
  EXPECT_FALSE(heap->location_of(private_block.get(), 1).has_value());
  EXPECT_TRUE(all_zero(private_block.get(), 30 * kMiB));
  private_block.get()[30 * kMiB - 1] = std::byte{1};
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST(SharedHeap, SmallBlocksUseTheLargeZoneWhenTheirsIsFull) {
  const auto heap = SharedHeap::create(4 * kMiB).value();
  std::vector<std::shared_ptr<std::byte>> blocks;
  for (int i = 0; i < 100; ++i) {
    blocks.push_back(heap->allocate(40'000).value());
    EXPECT_EQ(heap->location_of(blocks.back().get(), 40'000).has_value(), i < 52 + 51) << i;
    EXPECT_TRUE(all_zero(blocks.back().get(), 40'000));
    std::memset(blocks.back().get(), 1, 40'000);
  }
}

TEST(SharedHeap, PeersSeeABlockOf100MiB) {
  const auto heap = SharedHeap::create(kHeapBytes).value();
  const auto block = heap->allocate(100 * kMiB).value();
  const auto location = heap->location_of(block.get(), 100 * kMiB);
  ASSERT_TRUE(location.has_value());
  const auto peer = PeerHeap::attach(heap->descriptor()).value();
  block.get()[100 * kMiB - 1] = std::byte{42};
  EXPECT_EQ(*peer->at(*location + 100 * kMiB - 1, 1), std::byte{42});
}

TEST(SharedHeap, AThousandBlocksOneAfterAnotherUseLittleMemory) {
  const auto heap = SharedHeap::create(kHeapBytes).value();
  const std::size_t bytes_before = bytes_in_use(*heap);
  std::size_t largest = 0;
  for (std::size_t i = 0; i < 1000; ++i) {
    const std::size_t bytes = kLargeBlockBytes + i * 4096;
    const auto block = heap->allocate(bytes).value();
    block.get()[0] = block.get()[bytes - 1] = std::byte{1};
    largest = std::max(largest, bytes_in_use(*heap) - bytes_before);
  }
  EXPECT_LE(largest, kHeapBytes / 16 + 6 * kMiB) << "the kept blocks and one block in use";
}

TEST(SharedHeap, AKeptBlockKeepsItsPages) {
  const auto heap = SharedHeap::create(kHeapBytes).value();
  auto block = heap->allocate(8 * kMiB).value();
  auto* const address = block.get();
  std::memset(address, 0xff, 8 * kMiB);
  block.reset();
  EXPECT_GE(bytes_in_use(*heap), 8 * kMiB);
  block = heap->allocate(8 * kMiB).value();
  EXPECT_EQ(block.get(), address);
  EXPECT_TRUE(all_zero(address, 8 * kMiB));
}

TEST(SharedHeap, ABlockTooLargeToKeepIsDiscarded) {
  const auto heap = SharedHeap::create(kHeapBytes).value();
  const std::size_t bytes_before = bytes_in_use(*heap);
  auto block = heap->allocate(100 * kMiB).value();
  std::memset(block.get(), 0xff, 100 * kMiB);
  EXPECT_GE(bytes_in_use(*heap), bytes_before + 100 * kMiB);
  block.reset();
  EXPECT_EQ(bytes_in_use(*heap), bytes_before);
  EXPECT_TRUE(all_zero(heap->allocate(100 * kMiB).value().get(), 100 * kMiB));
}

TEST(SharedHeap, KeptBlocksAreFreedForALargeOne) {
  const auto heap = SharedHeap::create(kHeapBytes).value();
  heap->allocate(16 * kMiB).value().reset();
  const auto all = heap->allocate(kHeapBytes * 15 / 16).value();
  EXPECT_TRUE(heap->location_of(all.get(), kHeapBytes * 15 / 16).has_value());
}

TEST(SharedHeap, MoreThanTheHostHasIsAnErrorAtOnce) {
  const auto heap = SharedHeap::create(4 * kMiB).value();
  const std::size_t bytes = std::size_t{1} << 44;
  const auto block = heap->allocate(bytes);
  EXPECT_THAT(block.status().message(),
              testing::MatchesRegex(format_text("{} bytes cannot be allocated: this host has .* "
                                                "bytes of free memory.*",
                                                bytes)));
  EXPECT_EQ(block.status().code(), StatusCode::kStop);
}

TEST(SharedHeap, ALargeBlockTakesItsPagesInPortions) {
  const auto heap = SharedHeap::create(512 * kMiB).value();
  const std::size_t bytes_before = bytes_in_use(*heap);
  const auto block = heap->allocate(300 * kMiB).value();
  EXPECT_GE(bytes_in_use(*heap), bytes_before + 150 * 4096);
  EXPECT_TRUE(heap->location_of(block.get(), 300 * kMiB).has_value());
  EXPECT_TRUE(all_zero(block.get() + 255 * kMiB, 2 * kMiB));
}

TEST(SharedHeap, LocationsEndWithTheSegment) {
  const auto heap = SharedHeap::create(4 * kMiB).value();
  const auto block = heap->allocate(2 * kMiB).value();
  EXPECT_TRUE(heap->location_of(block.get(), 2 * kMiB).has_value());
  EXPECT_FALSE(heap->location_of(block.get(), 2 * kMiB + 1).has_value());
}

TEST(SharedHeap, ABlockKeepsTheHeapAlive) {
  const auto descriptors = open_descriptors();
  auto heap = SharedHeap::create(kHeapBytes).value();
  auto block = heap->allocate(1000).value();
  const std::weak_ptr<SharedHeap> weak_heap = heap;
  heap.reset();
  std::memset(block.get(), 1, 1000);
  ASSERT_TRUE(weak_heap.lock());
  EXPECT_TRUE(weak_heap.lock()->location_of(block.get(), 1000).has_value());
  block.reset();
  EXPECT_FALSE(weak_heap.lock());
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST(SharedHeap, APeerSeesTheSameBytes) {
  const auto heap = SharedHeap::create(kHeapBytes).value();
  const auto padding = heap->allocate(300).value();
  const auto block = heap->allocate(1000).value();
  const auto peer = PeerHeap::attach(heap->descriptor()).value();
  const auto location = heap->location_of(block.get() + 10, 990).value();
  block.get()[10] = std::byte{42};
  EXPECT_EQ(*peer->at(location, 1), std::byte{42});
}

TEST(SharedHeap, APeerRejectsLocationsOutside) {
  const auto heap = SharedHeap::create(kHeapBytes).value();
  const auto peer = PeerHeap::attach(heap->descriptor()).value();
  EXPECT_NE(peer->at(kHeapBytes - 8, 8), nullptr);
  EXPECT_EQ(peer->at(kHeapBytes - 8, 9), nullptr);
  EXPECT_EQ(peer->at(kHeapBytes + 1, 0), nullptr);
  EXPECT_EQ(peer->at(~std::uint64_t{0} - 3, 8), nullptr);
  EXPECT_EQ(peer->at(8, ~std::size_t{0} - 3), nullptr);
  const int stack_variable = 0;
  EXPECT_FALSE(heap->location_of(&stack_variable, 1).has_value());
}

TEST(SharedHeap, RejectsImpossibleSizes) {
  const auto heap = SharedHeap::create(kHeapBytes).value();
  EXPECT_FALSE(heap->allocate(~std::size_t{0}).ok());
  EXPECT_FALSE(heap->allocate(std::size_t{1} << 62).ok());
}

bool all_are(const std::byte* begin, std::size_t bytes, std::byte value) {
  return std::all_of(begin, begin + bytes, [value](std::byte b) { return b == value; });
}

// The child frees more bytes than the heap may keep. If the child acted as an owner, it would
// discard pages.
TEST(SharedHeap, ABlockFreedByAForkedChildRemainsTheParents) {
  constexpr std::size_t kBytes = 8 * kMiB;
  const auto heap = SharedHeap::create(kHeapBytes).value();
  std::vector<std::shared_ptr<std::byte>> blocks;
  for (int i = 0; i < 4; ++i) {
    blocks.push_back(heap->allocate(kBytes).value());
    std::memset(blocks.back().get(), 5, kBytes);
  }
  const pid_t child = ::fork();
  if (child == 0) {
    heap->abandon_after_fork();
    const bool is_abandoned = !heap->is_of_this_process() && !heap->descriptor().valid();
    blocks.clear();
    ::_exit(is_abandoned ? 42 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 42);
  EXPECT_TRUE(heap->is_of_this_process());
  EXPECT_TRUE(heap->descriptor().valid());
  for (const auto& block : blocks) EXPECT_TRUE(all_are(block.get(), kBytes, std::byte{5}));
}

// After unshare(), stores of a peer no longer reach the owner.
TEST(SharedHeap, MemoryTakenBackKeepsItsBytesWhateverAPeerStores) {
  const auto heap = SharedHeap::create(kHeapBytes).value();
  const auto peer = PeerHeap::attach(heap->descriptor()).value();
  constexpr std::size_t kBytes = 3 << 20;
  const auto block = heap->allocate(kBytes).value();
  const auto location = heap->location_of(block.get(), kBytes).value();
  std::memset(peer->at(location, kBytes), 5, kBytes);
  const std::span<const std::byte> part(block.get() + 10'000, 2'000'000);
  ASSERT_TRUE(heap->unshare(part).ok());
  EXPECT_TRUE(all_are(block.get(), kBytes, std::byte{5}));
  std::memset(block.get() + 10'000, 6, 2'000'000);
  std::memset(peer->at(location, kBytes), 7, kBytes);
  EXPECT_TRUE(all_are(part.data(), part.size(), std::byte{6}));
  // Only the pages of `part` become private. The peer still sees the memory next to them.
  const auto pages = SharedHeap::pages_of(part);
  EXPECT_EQ(pages.data(), block.get() + 8192);
  EXPECT_TRUE(all_are(block.get() + 8192, 10'000 - 8192, std::byte{5}));
  EXPECT_EQ(block.get()[8191], std::byte{7});
  EXPECT_EQ(pages.data()[pages.size()], std::byte{7});
}

TEST(SharedHeap, MemoryTakenBackIsNeverSharedOrAllocatedAgain) {
  const auto heap = SharedHeap::create(kHeapBytes).value();
  constexpr std::size_t kBytes = 1 << 20;
  auto block = heap->allocate(kBytes).value();
  const auto* const begin = block.get();
  EXPECT_TRUE(heap->location_of(begin, kBytes).has_value());
  ASSERT_TRUE(heap->unshare({begin + 5000, 1}).ok());
  EXPECT_FALSE(heap->location_of(begin, kBytes).has_value());
  EXPECT_FALSE(heap->location_of(begin + 4096, 10).has_value());
  EXPECT_TRUE(heap->location_of(begin, 4096).has_value());
  EXPECT_TRUE(heap->location_of(begin + 8192, 10).has_value());
  block.reset();
  std::vector<std::shared_ptr<std::byte>> blocks;
  while (true) {
    blocks.push_back(heap->allocate(kBytes).value());
    const auto* const new_block = blocks.back().get();
    ASSERT_TRUE(new_block + kBytes <= begin || new_block >= begin + kBytes);
    if (!heap->location_of(new_block, kBytes)) break;  // the heap is full
  }
}

// If small blocks are in the same page as memory that is no longer shared, they keep their bytes,
// but are no longer shared either.
TEST(SharedHeap, NeighboursInAPageThatWasTakenBackBecomePrivate) {
  const auto heap = SharedHeap::create(kHeapBytes).value();
  auto first = heap->allocate(300).value();
  const auto middle = heap->allocate(300).value();
  const auto last = heap->allocate(300).value();
  std::memset(first.get(), 1, 300);
  std::memset(last.get(), 3, 300);
  ASSERT_TRUE(heap->unshare({middle.get(), 300}).ok());
  EXPECT_TRUE(all_are(first.get(), 300, std::byte{1}));
  EXPECT_TRUE(all_are(last.get(), 300, std::byte{3}));
  EXPECT_FALSE(heap->location_of(first.get(), 300).has_value());
  const auto* const freed = first.get();
  first.reset();
  EXPECT_NE(heap->allocate(300).value().get(), freed);
}

TEST(SharedHeap, PinnedPagesAreNotTakenBack) {
  constexpr std::size_t kBytes = 1 << 20;
  const auto heap = SharedHeap::create(kHeapBytes).value();
  const auto block = heap->allocate(kBytes).value();
  const std::span<const std::byte> block_bytes(block.get(), kBytes);
  const int stack_variable = 0;
  {
    HeapPin pin(*heap);
    HeapPin second_pin(*heap);
    second_pin.pin({std::span(reinterpret_cast<const std::byte*>(&stack_variable), 1), {}});
    pin.pin({block_bytes.subspan(10, 1), block_bytes.subspan(20'000, 1)});
    EXPECT_EQ(heap->unshare(block_bytes.subspan(4000, 1)).code(), StatusCode::kRetry)
        << "the same page";
    EXPECT_EQ(heap->unshare(block_bytes.subspan(19'000, 2000)).code(), StatusCode::kRetry);
    EXPECT_TRUE(heap->location_of(block_bytes.data(), kBytes).has_value());
    EXPECT_TRUE(heap->unshare(block_bytes.subspan(5000, 1)).ok()) << "another page";
    pin.pin({block_bytes.subspan(50'000, 1), {}});
    EXPECT_TRUE(heap->unshare(block_bytes.subspan(4000, 1)).ok());
    EXPECT_EQ(heap->unshare(block_bytes.subspan(50'000, 1)).code(), StatusCode::kRetry);
    pin.unpin();
    EXPECT_TRUE(heap->unshare(block_bytes.subspan(50'000, 1)).ok());
    pin.pin({block_bytes.subspan(100'000, 1), {}});
  }
  EXPECT_TRUE(heap->unshare(block_bytes.subspan(100'000, 1)).ok()) << "the pin is gone";
}

// While pages become private, stores of other threads must not be lost.
TEST(SharedHeap, OtherThreadsStoreWhileMemoryIsTakenBack) {
  if (::dlsym(RTLD_DEFAULT, "__tsan_init") != nullptr)
    GTEST_SKIP() << "the thread sanitizer counts a mapping over memory in use as a store";
  const auto heap = SharedHeap::create(kHeapBytes).value();
  constexpr std::size_t kWords = (2 << 20) / sizeof(std::uint64_t);
  const auto block = heap->allocate(kWords * sizeof(std::uint64_t)).value();
  auto* const words = reinterpret_cast<std::uint64_t*>(block.get());
  std::atomic<bool> unshared = false;
  std::jthread writer([&] {
    for (std::uint64_t round = 1; !unshared; ++round) {
      for (std::size_t i = 1; i < kWords; i += 511)
        std::atomic_ref(words[i]).store(round, std::memory_order_relaxed);
      for (std::size_t i = 1; i < kWords; i += 511)
        ASSERT_EQ(std::atomic_ref(words[i]).load(std::memory_order_relaxed), round);
    }
  });
  ASSERT_TRUE(heap->unshare({block.get(), kWords * sizeof(std::uint64_t)}).ok());
  unshared = true;
}

// The threads free more bytes than the heap may keep. So the heap often discards pages while
// another thread allocates.
TEST(SharedHeap, PagesAreDiscardedBeforeTheirBlockIsUsedAgain) {
  constexpr std::size_t kStride = 4096;
  const auto heap = SharedHeap::create(96 * kMiB).value();  // the threads use a little less
  const auto allocate_and_free = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int round = 0; round < 500; ++round) {
      const std::size_t bytes = (12 + 2 * (random() % 5)) * kMiB;
      const auto block = heap->allocate(bytes).value();
      const auto mark = std::byte(1 + random() % 255);
      for (std::size_t offset = 0; offset < bytes; offset += kStride) block.get()[offset] = mark;
      std::this_thread::yield();
      std::size_t marks_left = 0;
      for (std::size_t offset = 0; offset < bytes; offset += kStride)
        marks_left += block.get()[offset] == mark ? 1 : 0;
      ASSERT_EQ(marks_left, bytes / kStride) << "seed " << seed << ", round " << round;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) threads.emplace_back(allocate_and_free, seed);
  for (auto& thread : threads) thread.join();
}

TEST(SharedHeap, ManyThreadsAllocateAndFree) {
  const auto heap = SharedHeap::create(kHeapBytes).value();
  std::vector<std::jthread> threads;
  for (unsigned seed = 1; seed <= 4; ++seed)
    threads.emplace_back([&heap, seed] {
      std::mt19937 random(seed);
      std::vector<std::pair<std::shared_ptr<std::byte>, std::size_t>> blocks;
      for (int i = 0; i < 400; ++i) {
        const std::size_t bytes = random() % 8 == 0 ? random() % 300'000 : random() % 5000;
        auto block = heap->allocate(bytes).value();
        ASSERT_TRUE(all_zero(block.get(), bytes));
        std::memset(block.get(), static_cast<int>(seed), bytes);
        blocks.emplace_back(std::move(block), bytes);
        if (blocks.size() < 20) continue;
        const auto chosen = blocks.begin() + random() % 20;
        ASSERT_TRUE(std::all_of(chosen->first.get(), chosen->first.get() + chosen->second,
                                [&](std::byte b) { return b == std::byte(seed); }));
        blocks.erase(chosen);
      }
    });
}

}  // namespace
}  // namespace farandole
