#include "collective/fusion_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "collective/group.h"

namespace farandole {
namespace {

constexpr std::size_t kHeapBytes = 64 << 20;

FusionBuffer::Piece piece_of(std::vector<std::byte>& input, std::vector<std::byte>& output) {
  return {input.data(), output.data(), static_cast<std::int64_t>(input.size())};
}

TEST(FusionBuffer, packs_in_order_and_unpacks_to_the_outputs) {
  const auto heap = SharedHeap::create(kHeapBytes).value();
  FusionBuffer buffer(*heap, 1 << 20);
  for (int step = 0; step < 3; ++step) {
    std::vector<std::vector<std::byte>> inputs;
    std::vector<std::vector<std::byte>> outputs;
    for (const std::size_t bytes : {3UL, 0UL, 700'000UL, 5UL}) {
      inputs.emplace_back(bytes, std::byte(step) | std::byte(inputs.size() << 4U));
      outputs.emplace_back(bytes);
    }
    buffer.clear();
    for (std::size_t i = 0; i < inputs.size(); ++i) buffer.add(piece_of(inputs[i], outputs[i]));
    ASSERT_EQ(buffer.choose_memory(), Status());
    EXPECT_FALSE(buffer.in_place());
    EXPECT_EQ(buffer.bytes(), 700'008);
    EXPECT_TRUE(heap->location_of(buffer.memory(), 700'008));
    // One call of pack() copies only a part of the tensors.
    EXPECT_FALSE(buffer.pack());
    while (!buffer.pack()) {
    }
    std::byte* position = buffer.memory();
    for (const auto& input : inputs) {
      EXPECT_TRUE(std::ranges::equal(std::span(position, input.size()), input));
      std::memset(position, 7 + static_cast<int>(input.size() % 100), input.size());
      position += input.size();
    }
    EXPECT_FALSE(buffer.unpack());
    while (!buffer.unpack()) {
    }
    for (const auto& output : outputs)
      EXPECT_EQ(output,
                std::vector(output.size(), static_cast<std::byte>(7 + output.size() % 100)));
  }
}

TEST(FusionBuffer, contiguous_in_place_tensors_are_not_copied) {
  const auto heap = SharedHeap::create(kHeapBytes).value();
  FusionBuffer buffer(*heap, 1 << 20);
  std::vector<std::byte> memory(100);
  std::byte* const begin = memory.data();
  buffer.add({begin, begin, 60});
  buffer.add({nullptr, nullptr, 0});
  buffer.add({begin + 60, begin + 60, 40});
  ASSERT_EQ(buffer.choose_memory(), Status());
  EXPECT_TRUE(buffer.in_place());
  EXPECT_EQ(buffer.memory(), begin);
  EXPECT_EQ(buffer.bytes(), 100);
  EXPECT_TRUE(buffer.pack() && buffer.unpack());
  const auto packs = [&](const std::vector<FusionBuffer::Piece>& pieces) {
    buffer.clear();
    for (const auto& piece : pieces) buffer.add(piece);
    EXPECT_EQ(buffer.choose_memory(), Status());
    return !buffer.in_place();
  };
  EXPECT_TRUE(packs({{begin, begin, 60}, {begin + 61, begin + 61, 39}}));       // a gap
  EXPECT_TRUE(packs({{begin + 60, begin + 60, 40}, {begin, begin, 60}}));       // another order
  EXPECT_TRUE(packs({{begin, begin + 50, 25}, {begin + 25, begin + 75, 25}}));  // not in place
  EXPECT_FALSE(packs({}));
}

TEST(FusionBuffer, memory_is_reused_and_doubles_up_to_its_maximum) {
  const auto heap = SharedHeap::create(kHeapBytes).value();
  FusionBuffer buffer(*heap, 1 << 20);
  std::vector<std::byte> memory(3 << 20);
  const auto memory_for = [&](std::int64_t bytes) {
    buffer.clear();
    buffer.add({memory.data(), memory.data() + 1, bytes});
    EXPECT_EQ(buffer.choose_memory(), Status());
    return buffer.memory();
  };
  const std::byte* const first = memory_for(600'000);
  EXPECT_EQ(memory_for(100), first);
  EXPECT_EQ(memory_for(1 << 20), first);
  (void)memory_for(2 << 20);
  EXPECT_TRUE(heap->location_of(buffer.memory(), 2 << 20));
}

}  // namespace
}  // namespace farandole
