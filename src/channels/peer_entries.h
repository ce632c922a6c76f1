// PeerEntries: the last entries that another host has sent in one group. Two entries are enough: a
// host enters step k only after it has completed step k − 1, and it cannot complete step k − 1
// without our entry of this step. So while we are in step k, another host has entered at most step
// k + 1.
//
// After a replan, a sequence is entered again under a newer generation. The new entry may arrive
// while we still wait in the old step, and it then replaces the old entry. We do not need the old
// entry any more. The replan has shown that not all members had entered the same step, so our host
// will roll back its own entry, too.
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

  // Stores an entry that has arrived, in place of an older entry.
  void store(const StepIdentity& step, std::span<const std::byte> note) {
    Entry& entry = entries_[step.sequence % entries_.size()];
    entry.step = step;
    entry.note.assign(note.begin(), note.end());
  }
  // Returns the entry of this generation and sequence; null if this entry has not arrived.
  const Entry* find(std::uint32_t generation, std::uint32_t sequence) const {
    const Entry& entry = entries_[sequence % entries_.size()];
    const bool matches = entry.step.generation == generation && entry.step.sequence == sequence;
    return matches ? &entry : nullptr;
  }

 private:
  std::array<Entry, 2> entries_ = {};
};

}  // namespace farandole
