// KnownSignatures: the names that a group's calls have, and what was submitted under each the last
// time, so that a call that repeats computes no digest and takes no memory. A plain container.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>

#include "base/signature.h"
#include "farandole/engine.h"

namespace farandole {

// How many names of a group have an id, and a signature that is kept.
inline constexpr std::size_t kNamesMax = 65536;

class KnownSignatures {
 public:
  struct Entry {
    KnownSignature known;
    bool in_use = true;
  };

  // About `names_max` are kept, and what is in use.
  explicit KnownSignatures(std::size_t names_max = kNamesMax) : names_max_(names_max) {}

  // Of a checked submission; null when its name is in use. Stays as it is until give_back().
  // When std::bad_alloc comes out the name is not in use.
  Entry* take(const Submission& submission);
  static void give_back(Entry& entry) { entry.in_use = false; }
  void forget_unused();

  std::size_t size() const { return entries_.size(); }

 private:
  std::size_t names_max_;
  std::unordered_map<std::string, Entry> entries_;
};

}  // namespace farandole
