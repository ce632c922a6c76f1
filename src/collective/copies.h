// Copies: what a member fetches from the others, one copy after another, a bounded amount at a
// time.
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

// Of one round; begins again when it is over.
class Copies {
 public:
  // One copy from each member, our own the last: not all read from the same member at once.
  // copy_of(member) says the same for a member until this returned true; false while some is left.
  template <class CopyOf>
  bool advance(const Group& group, const CopyOf& copy_of) {
    std::int64_t left = kChunkBytes;
    for (const int members = group.members(); finished_ < members; ++finished_) {
      const Copy copy = copy_of((group.member + 1 + finished_) % members);
      if (!advance_one(copy, left)) return false;
    }
    finished_ = 0;
    return true;
  }

  // A single copy.
  bool advance(const Copy& copy) {
    std::int64_t left = kChunkBytes;
    return advance_one(copy, left);
  }

 private:
  bool advance_one(const Copy& copy, std::int64_t& left) {
    const std::int64_t bytes = std::min(left, copy.bytes - copied_);
    if (bytes > 0)
      std::memcpy(copy.to + copied_, copy.from + copied_, static_cast<std::size_t>(bytes));
    copied_ += bytes;
    left -= bytes;
    if (copied_ < copy.bytes) return false;
    copied_ = 0;
    return true;
  }

  int finished_ = 0;         // copies of this round
  std::int64_t copied_ = 0;  // bytes of the next one
};

}  // namespace farandole
