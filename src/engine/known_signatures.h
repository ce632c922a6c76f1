// KnownSignatures: the signatures of what is submitted again and again, by name, so that a call
// that repeats computes no digest and takes no memory. A plain container of a group's member.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>

#include "base/signature.h"
#include "farandole/engine.h"

namespace farandole {

class KnownSignatures {
 public:
  struct Entry {
    KnownSignature known;
    bool in_flight = true;
  };

  // About `names_max` are kept, and what is in flight.
  explicit KnownSignatures(std::size_t names_max) : names_max_(names_max) {}

  // Of a checked submission whose name is not in flight. Stays as it is until give_back().
  Entry& take(const Submission& submission);
  static void give_back(Entry& entry) { entry.in_flight = false; }

  std::size_t size() const { return entries_.size(); }

 private:
  std::size_t names_max_;
  std::unordered_map<std::string, Entry> entries_;
};

}  // namespace farandole
