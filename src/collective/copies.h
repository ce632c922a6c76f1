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
  // Copies from every member: first from the next member, and last from this member itself. So the
  // members do not all read from the same member at the same time. Returns false if a copy is
  // unfinished; then call advance() again. Until advance() returns true, the results of copy_of()
  // must not change.
  template <class CopyOf>
  bool advance(const Group& group, const CopyOf& copy_of) {
    std::int64_t bytes_left = kBytesPerAdvance;
    for (const int members = group.members(); finished_copies_ < members; ++finished_copies_) {
      const Copy copy = copy_of((group.member + 1 + finished_copies_) % members);
      if (!advance_copy(copy, bytes_left)) return false;
    }
    finished_copies_ = 0;
    return true;
  }

  // Advances a round that has a single copy.
  bool advance(const Copy& copy) {
    std::int64_t bytes_left = kBytesPerAdvance;
    return advance_copy(copy, bytes_left);
  }

 private:
  bool advance_copy(const Copy& copy, std::int64_t& bytes_left) {
    const std::int64_t bytes = std::min(bytes_left, copy.bytes - copied_bytes_);
    if (bytes > 0)
      std::memcpy(copy.to + copied_bytes_, copy.from + copied_bytes_,
                  static_cast<std::size_t>(bytes));
    copied_bytes_ += bytes;
    bytes_left -= bytes;
    if (copied_bytes_ < copy.bytes) return false;
    copied_bytes_ = 0;
    return true;
  }

  int finished_copies_ = 0;        // how many copies of this round are finished
  std::int64_t copied_bytes_ = 0;  // how many bytes of the current copy are copied
};

}  // namespace farandole
