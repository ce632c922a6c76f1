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
const WaitLimit kNoWait{TimePoint{}, kNotInterrupted};

TEST(SharedSegment, IsTheSameMemoryForAll) {
  MemoryStore store;
  const Costs costs{.wait_bytes = 7};
  ASSERT_TRUE(share_group(store, "group", 2, costs).ok());
  const auto bytes = GroupMemory::bytes_needed(2);
  const auto first = receive_segment(store, "group", bytes, kNoWait).value();
  const auto second = receive_segment(store, "group", bytes, kNoWait).value();
  EXPECT_EQ(GroupMemory(first->data(), 2).costs().wait_bytes, 7);
  *GroupMemory(first->data(), 2).staging(1) = std::byte{9};
  EXPECT_EQ(*GroupMemory(second->data(), 2).staging(1), std::byte{9});
}

TEST(SharedSegment, AValueWithoutDescriptorIsAnError) {
  MemoryStore store;
  ASSERT_TRUE(store.set("segment", {}).ok());
  const auto segment = receive_segment(store, "segment", 1, kNoWait);
  EXPECT_EQ(segment.status().code(), StatusCode::kStop);
  EXPECT_THAT(segment.status().message(),
              HasSubstr("`segment` came with 0 descriptors instead of 1"));
  EXPECT_EQ(receive_segment(store, "absent", 1, kNoWait).status().code(), StatusCode::kRetry);
}

}  // namespace
}  // namespace farandole
