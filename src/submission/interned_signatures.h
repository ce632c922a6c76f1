// InternedSignatures: the names that a group's calls have, and what was submitted under each the
// last time, so that a call that repeats computes no digest and takes no memory. A plain container.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "base/signature.h"
#include "farandole/engine.h"

namespace farandole {

// How many names of a group have an id, and a signature that is kept.
inline constexpr std::size_t kNamesMax = 65536;

class InternedSignatures {
 public:
  struct Entry {
    InternedSignature interned;
    bool in_use = true;
  };

  // About `names_max` are kept, and what is in use; of a name that is in use for good, 64 bits.
  explicit InternedSignatures(std::size_t names_max = kNamesMax) : names_max_(names_max) {}

  // Of a checked submission; null when its name is in use. Stays as it is until give_back() or
  // give_up(). If it throws std::bad_alloc, the name is not in use.
  Entry* take(const Submission& submission);
  static void give_back(Entry& entry) { entry.in_use = false; }
  // The name is in use for good, and the entry is gone. Only a digest of the name stays, of about
  // 40 bytes: two names are alike with a chance of 2^-64, and then the other one is rejected on all
  // ranks alike. Throws nothing: without memory the whole entry stays.
  void give_up(Entry& entry) noexcept;
  // The same, of a name that nobody can take again: nothing of it stays.
  void forget(Entry& entry) noexcept;

  std::size_t size() const { return entries_.size(); }

 private:
  void forget_unused();

  std::size_t names_max_;
  std::unordered_map<std::string, Entry> entries_;
  std::unordered_set<std::uint64_t> given_up_;  // digests of names
};

}  // namespace farandole
