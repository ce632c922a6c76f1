// Arena: which parts of a piece of memory are free. It reads and writes none of it. A block that is
// given back is free at once, or is kept aside with its pages until the next of that size comes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>

namespace farandole {

// Under a lock of the owner's. What gives memory back needs none: destructors call it.
class Arena {
 public:
  explicit Arena(std::span<std::byte> memory);

  bool holds(const std::byte* address) const;
  // Of a block that is in use.
  std::size_t bytes_of(const std::byte* begin) { return block_at(begin).bytes; }
  std::size_t kept_bytes() const { return kept_bytes_; }

  // First fit, at a multiple of the alignment from the beginning; null if nothing is large enough.
  std::byte* take(std::size_t bytes, std::size_t alignment);
  // A kept block of this size; null if there is none.
  std::byte* take_kept(std::size_t bytes);
  // A block that is in use, or that leaves, is free from now on.
  void give_back(const std::byte* begin);
  // A block that is in use is put aside.
  void keep(const std::byte* begin);
  // The block that was kept for longest: nobody else gets it until it is given back. Empty if there
  // is none.
  std::span<std::byte> let_oldest_leave();

 private:
  struct Block {
    std::size_t bytes = 0;
    std::uint64_t kept_since = 0;  // 0: not kept; else the count of blocks kept before, and one
  };
  using Blocks = std::map<std::size_t, Block>;  // by offset

  Block& block_at(const std::byte* begin);

  std::span<std::byte> memory_;
  Blocks free_;   // neighbours are merged
  Blocks taken_;  // likewise, not merged; kept ones, too
  std::size_t kept_bytes_ = 0;
  std::uint64_t kept_ = 0;
};

}  // namespace farandole
