#include "transport/shm/arena.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace farandole {

Arena::Arena(std::span<std::byte> memory) : memory_(memory) {
  if (!memory.empty()) free_.emplace(0, Block{memory.size()});
}

bool Arena::holds(const std::byte* address) const {
  return address >= memory_.data() && address < memory_.data() + memory_.size();
}

std::byte* Arena::allocate(std::size_t bytes, std::size_t alignment) {
  const auto gap_before = [&](std::size_t offset) {
    return (alignment - offset % alignment) % alignment;
  };
  const auto range = std::ranges::find_if(free_, [&](const auto& free) {
    const std::size_t gap = gap_before(free.first);
    return free.second.bytes >= gap && free.second.bytes - gap >= bytes;
  });
  if (range == free_.end()) return nullptr;
  const std::size_t gap = gap_before(range->first);
  const std::size_t begin = range->first + gap;
  const std::size_t bytes_left = range->second.bytes - gap - bytes;
  Blocks remaining_block;  // allocate both map nodes first, because this may throw
  if (bytes_left > 0) remaining_block.emplace(begin + bytes, Block{bytes_left});
  allocated_.emplace(begin, Block{bytes});
  if (gap > 0)
    range->second.bytes = gap;
  else
    free_.erase(range);
  free_.merge(remaining_block);
  return memory_.data() + begin;
}

std::byte* Arena::reuse_kept(std::size_t bytes) {
  if (kept_bytes_ < bytes) return nullptr;
  const auto found = std::ranges::find_if(allocated_, [&](const auto& block) {
    return block.second.keep_order != 0 && block.second.bytes == bytes;
  });
  if (found == allocated_.end()) return nullptr;
  found->second.keep_order = 0;
  kept_bytes_ -= bytes;
  return memory_.data() + found->first;
}

void Arena::release(const std::byte* begin) {
  CHECK(block_at(begin).keep_order == 0, "a block is released once");
  const auto range =
      free_.insert(allocated_.extract(static_cast<std::size_t>(begin - memory_.data()))).position;
  const auto next = std::next(range);
  if (next != free_.end() && next->first == range->first + range->second.bytes) {
    range->second.bytes += next->second.bytes;
    free_.erase(next);
  }
  if (range == free_.begin()) return;
  const auto previous = std::prev(range);
  if (previous->first + previous->second.bytes != range->first) return;
  previous->second.bytes += range->second.bytes;
  free_.erase(range);
}

void Arena::keep(const std::byte* begin) {
  Block& block = block_at(begin);
  CHECK(block.keep_order == 0, "a block is released once");
  block.keep_order = ++keep_calls_;
  kept_bytes_ += block.bytes;
}

std::span<std::byte> Arena::evict_oldest_kept() {
  auto oldest = allocated_.end();
  for (auto block = allocated_.begin(); block != allocated_.end(); ++block) {
    if (block->second.keep_order == 0) continue;
    if (oldest == allocated_.end() || block->second.keep_order < oldest->second.keep_order)
      oldest = block;
  }
  if (oldest == allocated_.end()) return {};
  oldest->second.keep_order = 0;
  kept_bytes_ -= oldest->second.bytes;
  return memory_.subspan(oldest->first, oldest->second.bytes);
}

Arena::Block& Arena::block_at(const std::byte* begin) {
  const auto block = allocated_.find(static_cast<std::size_t>(begin - memory_.data()));
  CHECK(block != allocated_.end(), "a block is released once");
  return block->second;
}

}  // namespace farandole
