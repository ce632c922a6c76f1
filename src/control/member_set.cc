#include "control/member_set.h"

#include <algorithm>

#include "base/check.h"

namespace farandole {
namespace {

constexpr std::size_t kWordsMax = 1024;  // a set in a message has at most this many words

}  // namespace

void MemberSet::insert(int member) {
  CHECK(member >= 0, "members count from 0");
  const auto number = static_cast<std::size_t>(member);
  extend_to(number / kWordBits, number / kWordBits + 1);
  words_[number / kWordBits - offset_] |= std::uint64_t{1} << (number % kWordBits);
}

void MemberSet::insert(const MemberSet& others) {
  if (others.empty()) return;
  extend_to(others.offset_, others.offset_ + others.words_.size());
  for (std::size_t index = 0; index < others.words_.size(); ++index)
    words_[others.offset_ + index - offset_] |= others.words_[index];
}

void MemberSet::extend_to(std::size_t first_word, std::size_t words_end) {
  if (words_.empty()) offset_ = first_word;
  if (first_word < offset_) {
    words_.insert(words_.begin(), offset_ - first_word, 0);
    offset_ = first_word;
  }
  if (words_end > offset_ + words_.size()) words_.resize(words_end - offset_);
}

int MemberSet::count() const {
  int count = 0;
  for (const auto word : words_) count += std::popcount(word);
  return count;
}

int MemberSet::first() const {
  CHECK(!empty(), "the set has a member");
  return static_cast<int>(offset_ * kWordBits) + std::countr_zero(words_.front());
}

int MemberSet::last() const {
  CHECK(!empty(), "the set has a member");
  return static_cast<int>((offset_ + words_.size()) * kWordBits) - 1 -
         std::countl_zero(words_.back());
}

bool MemberSet::contains(int member) const {
  const auto number = static_cast<std::size_t>(member);
  return (word(number / kWordBits) >> (number % kWordBits) & 1U) != 0;
}

bool MemberSet::contains(const MemberSet& others) const {
  for (std::size_t index = 0; index < others.words_.size(); ++index)
    if ((others.words_[index] & ~word(others.offset_ + index)) != 0) return false;
  return true;
}

bool MemberSet::intersects(const MemberSet& others) const {
  for (std::size_t index = 0; index < others.words_.size(); ++index)
    if ((others.words_[index] & word(others.offset_ + index)) != 0) return true;
  return false;
}

std::size_t MemberSet::bytes() const {
  return sizeof(std::uint32_t) + sizeof(std::uint16_t) + words_.size() * sizeof(std::uint64_t);
}

void MemberSet::write(ByteWriter& writer) const {
  CHECK(words_.size() <= kWordsMax, "a set fits into a message");
  writer.put(static_cast<std::uint32_t>(offset_));
  writer.put(static_cast<std::uint16_t>(words_.size()));
  for (const auto word : words_) writer.put(word);
}

MemberSet MemberSet::read(ByteReader& reader) {
  constexpr std::uint32_t kOffsetMax = 1U << 24U;  // members are numbers of type int
  MemberSet set;
  set.offset_ = reader.get<std::uint32_t>();
  const std::size_t words = reader.get<std::uint16_t>();
  if (set.offset_ > kOffsetMax || words > kWordsMax) return {};
  for (std::size_t index = 0; index < words && reader.ok(); ++index)
    set.words_.push_back(reader.get<std::uint64_t>());
  if (words == 0 || !reader.ok() || set.words_.front() == 0 || set.words_.back() == 0) return {};
  return set;
}

}  // namespace farandole
