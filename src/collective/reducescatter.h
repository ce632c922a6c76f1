// Reduce-scatter: every member reduces its own rows over all members. In a round a member shows, to
// each of the others, the next piece of what that one reduces; its own piece is read from the input
// and written to the output directly, never copied. All agree on the size.
//
// Cost for p members and n bytes that each brings:
// - small ones lie inside the flag line: 1 wait, the entry;
// - in memory that the others can see they are read where they are: 2 waits, one of them at the
//   end; moved per member (loads and stores) (p + 1)/p · n, the lower bound;
// - any other are staged: 1 wait per round, which takes 256 KiB of the input; moved per member
//   (3p − 1)/p · n, that is 2.5n for 2 members and 2.75n for 4. Members may differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "collective/rounds.h"
#include "device/cpu/reduce.h"

namespace farandole {

class Reducescatter {
 public:
  struct Options {
    Reduction reduction = {};
    std::int64_t rows = 0;       // the same on all members, as row_bytes; either may be 0
    std::int64_t row_bytes = 0;  // whole elements
    const std::byte* input = nullptr;
    // scattered_rows() of ours; apart from the input, untouched before all members have entered.
    std::byte* output = nullptr;

    std::int64_t bytes() const { return rows * row_bytes; }
  };

  // check_reduction() must hold. The memory is borrowed until the step is over.
  Reducescatter(const Group& group, const StepIdentity& identity, const Options& options);

  // Does a bounded amount of work; see Progress.
  Progress advance() { return rounds_.advance(*this); }

 private:
  // A range of bytes of the input.
  struct Range {
    std::int64_t begin = 0;
    std::int64_t bytes = 0;
  };

  bool is_inside() const { return options_.bytes() <= static_cast<std::int64_t>(kInlineBytes); }
  std::span<const std::byte> input() const;
  Range share(int member) const;                      // all that a member reduces
  Range piece(std::int64_t round, int member) const;  // what it reduces in one round
  // Where the piece for a member is in the staging memory of the others.
  std::int64_t piece_offset(std::int64_t round, int member) const;
  // Where a member shows what we reduce in this round.
  const std::byte* shown(int member, std::int64_t round) const;

  template <class Way>
  friend class BasicRounds;  // which calls these four
  void stage(std::int64_t round);
  void enter(Entrance& entrance) const;
  std::optional<std::int64_t> meet();
  bool take(std::int64_t round);  // reduces our piece

  Rounds rounds_;
  Options options_;
  std::int64_t piece_bytes_;  // of each member in a round; its whole share if nothing is staged
  Parts parts_;
  bool lends_;
  std::int64_t reduced_ = 0;  // bytes of this round
};

}  // namespace farandole
