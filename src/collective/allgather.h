// All-gather: in each round, every member publishes a window of its input and copies what all
// others publish. A member knows the sizes of the other inputs only after all members have entered,
// so its output is allocated only then.
//
// Each member decides for itself how it publishes its own part, and its entry tells the others. For
// p members that contribute n bytes each:
// - a small part is in the flag line: 1 wait, for the entry;
// - memory that the others can see is read in place: 2 waits (one at the end); each member moves
//   (loads and stores) 2pn bytes, which is the lower bound;
// - other memory is staged: 1 wait per round of 256 KiB; each member moves 2(p + 1)n bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "collective/copies.h"
#include "collective/rounds.h"

namespace farandole {

class Allgather {
 public:
  struct Options {
    const std::byte* input = nullptr;
    std::int64_t rows = 0;       // our first dimension; may differ between members, may be 0
    std::int64_t row_bytes = 0;  // the same for all members; may be 0
    // Called once, after all members have entered, with the number of rows of each member in rank
    // order. Returns memory for all rows. If it returns null, this member gets no result, but it
    // still takes part so that the others get theirs.
    std::function<std::byte*(std::span<const std::int64_t> rows)> allocate;
  };

  // The input is borrowed until the step has ended.
  Allgather(Group& group, const StepIdentity& identity, Options options);

  // Does a bounded amount of work; see Progress.
  Progress advance() { return rounds_.advance(*this); }

 private:
  std::span<const std::byte> own_part() const;
  // Whether `member` stages its part, which has `bytes` bytes. Call it after all have entered.
  bool is_staged(int member, std::int64_t bytes) const;
  Copy copy_of(int member, std::int64_t round) const;

  template <class EntryBarrierType>
  friend class BasicRounds;  // BasicRounds calls the next four functions
  void stage(std::int64_t round);
  void enter(EntryBarrier& entry_barrier) const;
  std::optional<std::int64_t> on_all_arrived();
  bool consume(std::int64_t round);

  Rounds rounds_;
  StepScratch* scratch_;  // owned by the group; until this step ends, only this step uses it
  Options options_;
  bool exposes_input_;
  std::byte* output_ = nullptr;
  Copies copies_;
};

}  // namespace farandole
