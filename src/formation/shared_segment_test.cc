#include "formation/shared_segment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "collective/group_memory.h"
#include "rendezvous/memory_store.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;

const std::function<bool()> kNotInterrupted;
const WaitLimit kAtOnce{TimePoint{}, kNotInterrupted};

TEST(SharedSegment, IsTheSameMemoryForAll) {
  MemoryStore store;
  const Costs costs{.wait_bytes = 7};
  ASSERT_TRUE(share_group(store, "group", 2, costs).ok());
  const auto bytes = GroupMemory::bytes_needed(2);
  const auto one = receive_segment(store, "group", bytes, kAtOnce).value();
  const auto other = receive_segment(store, "group", bytes, kAtOnce).value();
  EXPECT_EQ(GroupMemory(one->data(), 2).costs().wait_bytes, 7);
  *GroupMemory(one->data(), 2).staging(1) = std::byte{9};
  EXPECT_EQ(*GroupMemory(other->data(), 2).staging(1), std::byte{9});
}

TEST(SharedSegment, AValueWithoutDescriptorIsAnError) {
  MemoryStore store;
  ASSERT_TRUE(store.set("segment", {}).ok());
  const auto segment = receive_segment(store, "segment", 1, kAtOnce);
  EXPECT_EQ(segment.status().code(), StatusCode::kStop);
  EXPECT_THAT(segment.status().message(),
              HasSubstr("`segment` came with 0 descriptors instead of 1"));
  EXPECT_EQ(receive_segment(store, "absent", 1, kAtOnce).status().code(), StatusCode::kRetry);
}

}  // namespace
}  // namespace farandole
