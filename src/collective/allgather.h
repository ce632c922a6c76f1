// All-gather: in a round every member shows a window of what it brings, and copies what all others
// show. How much each member brings is known only after all have entered, so the output is asked
// for then.
//
// Each member decides for itself how it shows its own part; the others see which way it took. For p
// members that bring n bytes each:
// - a small part lies inside the flag line: 1 wait, the entry;
// - memory that the others can see is read where it is: 2 waits, one of them for its owner at the
//   end; moved per member (loads and stores) 2pn, the lower bound;
// - any other is staged: 1 wait per round of 256 KiB; moved per member 2(p + 1)n.
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
    std::int64_t row_bytes = 0;  // the same for all members; may be 0: the extents are rows
    // Called once, when all have entered: the rows of each member in rank order → memory for all
    // of them, one after another. Null means that we cannot keep the result: we still take part,
    // so that the others get theirs.
    std::function<std::byte*(std::span<const std::int64_t> rows)> allocate;
  };

  // The input is borrowed until the step is over.
  Allgather(const Group& group, const StepIdentity& identity, Options options);

  // Does a bounded amount of work; see Progress.
  Progress advance() { return rounds_.advance(*this); }

 private:
  std::span<const std::byte> own_part() const;
  // Of another member's part, once all have met.
  bool is_staged(int member, std::int64_t bytes) const;
  Copy copy_of(int member, std::int64_t round) const;

  template <class Way>
  friend class BasicRounds;  // which calls these four
  void stage(std::int64_t round);
  void enter(Entrance& entrance) const;
  std::optional<std::int64_t> meet();
  bool take(std::int64_t round);

  Rounds rounds_;
  Options options_;
  bool lends_;
  std::byte* output_ = nullptr;
  Copies copies_;
};

}  // namespace farandole
