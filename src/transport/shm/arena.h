// Arena: records which parts of a memory range are free. It never reads or writes this memory. When
// a block is no longer needed, it is either freed, or kept with its pages for the next request of
// the same size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>

namespace farandole {

// The owner must hold a lock around every call. release(), keep() and evict_oldest_kept() allocate
// no memory, because destructors call them and must not throw.
class Arena {
 public:
  explicit Arena(std::span<std::byte> memory);

  bool holds(const std::byte* address) const;
  // The size of a block that is in use.
  std::size_t bytes_of(const std::byte* begin) { return block_at(begin).bytes; }
  std::size_t kept_bytes() const { return kept_bytes_; }

  // Allocates a block in the first free range that is large enough. The alignment is relative to
  // the beginning of the memory. Returns null if there is no such range.
  std::byte* allocate(std::size_t bytes, std::size_t alignment);
  // Allocates a kept block of exactly this size. Returns null if there is none.
  std::byte* reuse_kept(std::size_t bytes);
  // Frees a block that is in use or that evict_oldest_kept() has returned.
  void release(const std::byte* begin);
  // Keeps a block that was in use, until reuse_kept() or evict_oldest_kept() returns it.
  void keep(const std::byte* begin);
  // Returns the block that has been kept longest; empty if there is none. The block's memory
  // becomes free only when release() is called.
  std::span<std::byte> evict_oldest_kept();

 private:
  struct Block {
    std::size_t bytes = 0;
    // 0: not kept; otherwise the number of the keep() call, counted from 1
    std::uint64_t keep_order = 0;
  };
  using Blocks = std::map<std::size_t, Block>;  // by offset

  Block& block_at(const std::byte* begin);

  std::span<std::byte> memory_;
  Blocks free_ranges_;       // adjacent blocks are merged
  Blocks allocated_blocks_;  // not merged; includes kept blocks
  std::size_t kept_bytes_ = 0;
  std::uint64_t keep_calls_ = 0;
};

}  // namespace farandole
