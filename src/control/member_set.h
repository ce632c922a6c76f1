// MemberSet: a set of members of a group. The leader of a host (see tree.h) sends announcements for
// several members, and names these members by a MemberSet.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"

namespace farandole {

class MemberSet {
 public:
  MemberSet() = default;
  explicit MemberSet(int member) { insert(member); }

  void insert(int member);
  void insert(const MemberSet& others);
  bool empty() const { return words_.empty(); }
  int count() const;
  int first() const;  // the lowest member; the set must not be empty
  int last() const;   // the highest member; the set must not be empty
  bool contains(int member) const;
  bool contains(const MemberSet& others) const;
  bool intersects(const MemberSet& others) const;
  // Calls `visit` with each member, in ascending order.
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::size_t index = 0; index < words_.size(); ++index)
      for (auto word = words_[index]; word != 0; word &= word - 1)
        visit(static_cast<int>((offset_ + index) * kWordBits) + std::countr_zero(word));
  }

  std::size_t bytes() const;  // how many bytes write() adds
  void write(ByteWriter& writer) const;
  // Reads what write() has written. If the bytes are not a set, the reader fails or the result is
  // empty.
  static MemberSet read(ByteReader& reader);

  friend bool operator==(const MemberSet&, const MemberSet&) = default;

 private:
  static constexpr std::size_t kWordBits = 64;

  std::uint64_t word(std::size_t number) const {
    return number >= offset_ && number < offset_ + words_.size() ? words_[number - offset_] : 0;
  }
  void extend_to(std::size_t first_word, std::size_t words_end);

  std::size_t offset_ = 0;            // the number of the first word
  std::vector<std::uint64_t> words_;  // bits; the first and the last word are not 0
};

}  // namespace farandole
