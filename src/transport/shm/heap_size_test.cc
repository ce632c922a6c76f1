#include "transport/shm/heap_size.h"

#include <gtest/gtest.h>

#include "transport/shm/segment.h"

namespace farandole {
namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30;
constexpr std::size_t kAddressSpaceBytes = std::size_t{1} << 47;

TEST(HeapSize, EqualsTheMachinesMemoryRoundedUpToHugePages) {
  EXPECT_EQ(heap_bytes({24 * kGiB, kAddressSpaceBytes, kAddressSpaceBytes}, 8), 24 * kGiB);
  EXPECT_EQ(heap_bytes({24 * kGiB - 5, kAddressSpaceBytes, kAddressSpaceBytes}, 8), 24 * kGiB);
}

TEST(HeapSize, LeavesRoomForAllHeapsOfTheHost) {
  const std::size_t bytes = heap_bytes({4096 * kGiB, kAddressSpaceBytes, kAddressSpaceBytes}, 256);
  EXPECT_LE(257 * bytes, kAddressSpaceBytes / 2);
  EXPECT_GE(257 * bytes, kAddressSpaceBytes / 5);
}

TEST(HeapSize, StaysBelowTheLimitsOfTheProcess) {
  EXPECT_EQ(heap_bytes({24 * kGiB, 16 * kGiB, kAddressSpaceBytes}, 2), 2 * kGiB);
  EXPECT_EQ(heap_bytes({24 * kGiB, kAddressSpaceBytes, kGiB + 1}, 2), kGiB);
  EXPECT_EQ(heap_bytes({24 * kGiB, 1000, 1000}, 2), kHugePageBytes) << "at least one huge page";
}

TEST(HeapSize, ReadsTheLimitsOfThisMachine) {
  const HeapLimits limits = heap_limits();
  EXPECT_GT(limits.memory, kHugePageBytes);
  EXPECT_GT(limits.address_space, kHugePageBytes);
  EXPECT_GT(limits.file, 0u);
}

}  // namespace
}  // namespace farandole
