// Broadcast: the root publishes its input and the others copy it. All members pass the same size.
//
// Cost for n bytes:
// - small tensors are in the flag line: 1 wait, for the entry;
// - memory that the others can see is read in place: 2 waits (one at the end); the root moves
//   nothing, and each other member moves (loads and stores) 2n bytes, which is the lower bound;
// - other memory is staged in parts: 1 wait per part; each member moves 2n bytes. Medium-sized
//   tensors have several parts, so that the others copy one part while the root stages the next.
// If the root's output is not its input, the root moves 2n bytes more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "collective/copies.h"
#include "collective/rounds.h"

namespace farandole {

class Broadcast {
 public:
  struct Options {
    int root = 0;                      // a member of the group
    std::int64_t bytes = 0;            // the same on all members
    const std::byte* input = nullptr;  // only the root's input is read
    std::byte* output = nullptr;       // may equal input; not written before all have entered
  };

  // The memory is borrowed until the step has ended.
  Broadcast(const Group& group, const StepIdentity& identity, const Options& options);

  // Does a bounded amount of work; see Progress.
  Progress advance() { return rounds_.advance(*this); }

 private:
  bool is_root() const { return rounds_.entry_barrier().group().member == options_.root; }
  bool is_inline() const { return options_.bytes <= static_cast<std::int64_t>(kInlineBytes); }
  std::span<const std::byte> input() const;  // empty if this member is not the root
  std::int64_t bytes_in_round(std::int64_t round) const;
  const std::byte* published_data(std::int64_t round) const;

  template <class EntryBarrierType>
  friend class BasicRounds;  // BasicRounds calls the next four functions
  void stage(std::int64_t round);
  void enter(EntryBarrier& entry_barrier) const;
  std::optional<std::int64_t> on_all_arrived();
  bool consume(std::int64_t round);

  Rounds rounds_;
  Options options_;
  Parts parts_;  // one part if nothing is staged
  bool exposes_input_;
  Copies copies_;
};

}  // namespace farandole
