// Copies: makes the copies of a round, one after another. Each call moves a bounded number of
// bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "collective/group.h"

namespace farandole {

struct Copy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::int64_t bytes = 0;
};

// The progress of the copies of one round. After the last copy, the object is ready for the next
// round.
class Copies {
 public:
  // Copies from every member: first from the next member, and last from ourselves. So not all
  // members read from the same member at once. Returns false if a copy is unfinished; then call
  // advance() again. Until advance() returns true, the results of copy_of() must not change.
  template <class CopyOf>
  bool advance(const Group& group, const CopyOf& copy_of) {
    std::int64_t bytes_left = kChunkBytes;
    for (const int members = group.members(); finished_ < members; ++finished_) {
      const Copy copy = copy_of((group.member + 1 + finished_) % members);
      if (!advance_one(copy, bytes_left)) return false;
    }
    finished_ = 0;
    return true;
  }

  // Advances a round that has a single copy.
  bool advance(const Copy& copy) {
    std::int64_t bytes_left = kChunkBytes;
    return advance_one(copy, bytes_left);
  }

 private:
  bool advance_one(const Copy& copy, std::int64_t& bytes_left) {
    const std::int64_t bytes = std::min(bytes_left, copy.bytes - copied_);
    if (bytes > 0)
      std::memcpy(copy.to + copied_, copy.from + copied_, static_cast<std::size_t>(bytes));
    copied_ += bytes;
    bytes_left -= bytes;
    if (copied_ < copy.bytes) return false;
    copied_ = 0;
    return true;
  }

  int finished_ = 0;         // finished copies of this round
  std::int64_t copied_ = 0;  // bytes of the current copy that are done
};

}  // namespace farandole
