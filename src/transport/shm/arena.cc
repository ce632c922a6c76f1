#include "transport/shm/arena.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace farandole {

Arena::Arena(std::span<std::byte> memory) : memory_(memory) {
  if (!memory.empty()) free_ranges_.emplace(0, Block{memory.size()});
}

bool Arena::holds(const std::byte* address) const {
  return address >= memory_.data() && address < memory_.data() + memory_.size();
}

std::byte* Arena::allocate(std::size_t bytes, std::size_t alignment) {
  const auto gap_before = [&](std::size_t offset) {
    return (alignment - offset % alignment) % alignment;
  };
  const auto range = std::ranges::find_if(free_ranges_, [&](const auto& free) {
    const std::size_t gap = gap_before(free.first);
    return free.second.bytes >= gap && free.second.bytes - gap >= bytes;
  });
  if (range == free_ranges_.end()) return nullptr;
  const std::size_t gap = gap_before(range->first);
  const std::size_t begin = range->first + gap;
  const std::size_t bytes_left = range->second.bytes - gap - bytes;
  Blocks remaining_block;  // allocate both map nodes first, because an allocation may throw
  if (bytes_left > 0) remaining_block.emplace(begin + bytes, Block{bytes_left});
  allocated_blocks_.emplace(begin, Block{bytes});
  if (gap > 0)
    range->second.bytes = gap;
  else
    free_ranges_.erase(range);
  free_ranges_.merge(remaining_block);
  return memory_.data() + begin;
}

std::byte* Arena::reuse_kept(std::size_t bytes) {
  if (kept_bytes_ < bytes) return nullptr;
  const auto kept_block = std::ranges::find_if(allocated_blocks_, [&](const auto& block) {
    return block.second.keep_order != 0 && block.second.bytes == bytes;
  });
  if (kept_block == allocated_blocks_.end()) return nullptr;
  kept_block->second.keep_order = 0;
  kept_bytes_ -= bytes;
  return memory_.data() + kept_block->first;
}

void Arena::release(const std::byte* begin) {
  CHECK(block_at(begin).keep_order == 0, "a block is released once");
  const auto range =
      free_ranges_
          .insert(allocated_blocks_.extract(static_cast<std::size_t>(begin - memory_.data())))
          .position;
  const auto next_range = std::next(range);
  if (next_range != free_ranges_.end() && next_range->first == range->first + range->second.bytes) {
    range->second.bytes += next_range->second.bytes;
    free_ranges_.erase(next_range);
  }
  if (range == free_ranges_.begin()) return;
  const auto previous_range = std::prev(range);
  if (previous_range->first + previous_range->second.bytes != range->first) return;
  previous_range->second.bytes += range->second.bytes;
  free_ranges_.erase(range);
}

void Arena::keep(const std::byte* begin) {
  Block& block = block_at(begin);
  CHECK(block.keep_order == 0, "a block is released once");
  block.keep_order = ++keep_calls_;
  kept_bytes_ += block.bytes;
}

std::span<std::byte> Arena::evict_oldest_kept() {
  auto oldest = allocated_blocks_.end();
  for (auto block = allocated_blocks_.begin(); block != allocated_blocks_.end(); ++block) {
    if (block->second.keep_order == 0) continue;
    if (oldest == allocated_blocks_.end() || block->second.keep_order < oldest->second.keep_order)
      oldest = block;
  }
  if (oldest == allocated_blocks_.end()) return {};
  oldest->second.keep_order = 0;
  kept_bytes_ -= oldest->second.bytes;
  return memory_.subspan(oldest->first, oldest->second.bytes);
}

Arena::Block& Arena::block_at(const std::byte* begin) {
  const auto block = allocated_blocks_.find(static_cast<std::size_t>(begin - memory_.data()));
  CHECK(block != allocated_blocks_.end(), "a block is released once");
  return block->second;
}

}  // namespace farandole
