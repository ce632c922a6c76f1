// Reduce-scatter: every member reduces its own rows over all members. In each round, a member
// publishes, for every other member, the next piece of the rows that this other member reduces. For
// the rows that it reduces itself, a member reads its own input and writes its output directly. All
// members pass the same size.
//
// Cost for p members that contribute n bytes each:
// - small tensors are in the flag line: 1 wait, for the entry;
// - memory that the others can see is read in place: 2 waits (one at the end); each member moves
//   (loads and stores) (p + 1)/p · n bytes, which is the lower bound;
// - other memory is staged: 1 wait per round, and a round takes 256 KiB of the input; each member
//   moves (3p − 1)/p · n bytes, that is 2.5n for 2 members and 2.75n for 4. Each member decides for
//   itself how it publishes its data.
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
    std::int64_t rows = 0;       // the same on all members, like row_bytes; either may be 0
    std::int64_t row_bytes = 0;  // whole elements
    const std::byte* input = nullptr;
    // Has room for our scattered_rows(). Must not be the input. It is not written before all
    // members have entered.
    std::byte* output = nullptr;

    std::int64_t bytes() const { return rows * row_bytes; }
  };

  // check_reduction() must be ok. The memory is borrowed until the step has ended.
  Reducescatter(Group& group, const StepIdentity& identity, const Options& options);

  // Does a bounded amount of work; see Progress.
  Progress advance() { return rounds_.advance(*this); }

 private:
  // A range of bytes of the input.
  struct Range {
    std::int64_t begin = 0;
    std::int64_t bytes = 0;
  };

  bool is_inline() const { return options_.bytes() <= static_cast<std::int64_t>(kInlineBytes); }
  std::span<const std::byte> input() const;
  Range share(int member) const;                      // everything that a member reduces
  Range piece(std::int64_t round, int member) const;  // what a member reduces in one round
  // Where the piece for a member begins in the staging memory of any other member.
  std::int64_t piece_offset(std::int64_t round, int member) const;
  // Where a member publishes the piece that we reduce in this round.
  const std::byte* published_data(int member, std::int64_t round) const;

  template <class EntryBarrierType>
  friend class BasicRounds;  // BasicRounds calls the next four functions
  void stage(std::int64_t round);
  void enter(EntryBarrier& entry_barrier) const;
  std::optional<std::int64_t> on_all_arrived();
  bool consume(std::int64_t round);  // reduces our piece

  Rounds rounds_;
  StepScratch* scratch_;  // owned by the group; until this step ends, only this step uses it
  Options options_;
  // how many bytes each member's piece has; the bytes of the largest share if nothing is staged
  std::int64_t piece_bytes_;
  Parts parts_;
  bool exposes_input_;
  std::int64_t reduced_bytes_ = 0;  // how many bytes of our piece of this round are reduced
};

}  // namespace farandole
