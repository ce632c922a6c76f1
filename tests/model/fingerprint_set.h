// FingerprintSet: the 64-bit fingerprints of the states that were visited, in one flat table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace farandole::model {

class FingerprintSet {
 public:
  FingerprintSet() : table_(1024, 0) {}

  // Returns false if the set contained the fingerprint before this call.
  bool insert(std::uint64_t fingerprint) {
    if (fingerprint == 0) fingerprint = 1;  // 0 marks a free place
    if (!put_if_absent(fingerprint)) return false;
    if (++size_ * 2 > table_.size()) grow();
    return true;
  }
  std::size_t size() const { return size_; }

 private:
  bool put_if_absent(std::uint64_t fingerprint) {
    std::size_t index = fingerprint & (table_.size() - 1);
    while (table_[index] != 0) {
      if (table_[index] == fingerprint) return false;
      index = (index + 1) & (table_.size() - 1);
    }
    table_[index] = fingerprint;
    return true;
  }
  void grow() {
    const auto old = std::exchange(table_, std::vector<std::uint64_t>(table_.size() * 2, 0));
    for (const auto fingerprint : old)
      if (fingerprint != 0) put_if_absent(fingerprint);
  }

  std::vector<std::uint64_t> table_;
  std::size_t size_ = 0;
};

}  // namespace farandole::model
