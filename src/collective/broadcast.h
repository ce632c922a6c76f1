// Broadcast: the root shows its input, the others copy it. All agree on the size.
//
// Cost for n bytes:
// - small ones lie inside the flag line: 1 wait, the entry;
// - in memory that the others can see they are read where they are: 2 waits, one of them for the
//   root at the end; moved (loads and stores) nothing at the root, 2n elsewhere, the lower bound;
// - any other are staged in parts, of which a mid-sized tensor has several, so that the others copy
//   one while the root stages the next: 1 wait per part; moved 2n everywhere.
// A root whose output is not its input moves 2n more.
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
    const std::byte* input = nullptr;  // read on the root only
    std::byte* output = nullptr;       // may equal input; untouched before all have entered
  };

  // The memory is borrowed until the step is over.
  Broadcast(const Group& group, const StepIdentity& identity, const Options& options);

  // Does a bounded amount of work; see Progress.
  Progress advance() { return rounds_.advance(*this); }

 private:
  bool is_root() const { return rounds_.entrance().group().member == options_.root; }
  bool is_inside() const { return options_.bytes <= static_cast<std::int64_t>(kInlineBytes); }
  std::span<const std::byte> input() const;  // empty elsewhere than on the root
  std::int64_t part_of(std::int64_t round) const;
  const std::byte* shown(std::int64_t round) const;

  template <class Way>
  friend class BasicRounds;  // which calls these four
  void stage(std::int64_t round);
  void enter(Entrance& entrance) const;
  std::optional<std::int64_t> meet();
  bool take(std::int64_t round);

  Rounds rounds_;
  Options options_;
  Parts parts_;  // a single one if nothing is staged
  bool lends_;
  Copies copies_;
};

}  // namespace farandole
