// PeerEntries: the last entries that another host has sent in one group. Two are enough: a host
// enters step k only after it has completed step k − 1, which needs our entry of step k − 1. So
// while we are in step k, another host has entered step k + 1 at most.
//
// After a replan, a sequence is entered again under a newer generation. The new entry may arrive
// while we still expect the old one. Then it replaces the old entry. That loses nothing: the
// members' reports have shown that not all members had entered the same step, so the old step will
// be rolled back here, too.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "collective/group.h"

namespace farandole {

class PeerEntries {
 public:
  struct Entry {
    StepIdentity step{.generation = 0};  // the generation is 0 if there is no entry
    Bytes note = {};
  };

  // Keeps an entry that has arrived, in the memory of an older one.
  void take(const StepIdentity& step, std::span<const std::byte> note) {
    Entry& entry = entries_[step.sequence % entries_.size()];
    entry.step = step;
    entry.note.assign(note.begin(), note.end());
  }
  // Returns the entry of this generation and sequence; null if it has not arrived.
  const Entry* find(std::uint32_t generation, std::uint32_t sequence) const {
    const Entry& entry = entries_[sequence % entries_.size()];
    const bool is_it = entry.step.generation == generation && entry.step.sequence == sequence;
    return is_it ? &entry : nullptr;
  }

 private:
  std::array<Entry, 2> entries_ = {};
};

}  // namespace farandole
