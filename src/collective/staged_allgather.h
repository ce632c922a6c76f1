// Staged all-gather: in round w every member shows its window w in its shared staging memory and
// copies window w of all others. How much each member brings is known only after all have entered,
// so the output is asked for then.
//
// Cost for p members that bring n bytes each: one wait per round of 256 KiB; moved per member
// (loads and stores) 2n to stage and 2pn to collect.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "collective/rounds.h"

namespace farandole {

class StagedAllgather {
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
  StagedAllgather(const Group& group, const StepIdentity& identity, Options options);

  // Does a bounded amount of work; see Progress.
  Progress advance() { return rounds_.advance(*this); }

 private:
  template <class Way>
  friend class BasicRounds;  // which calls these four
  void stage(std::int64_t round);
  void enter(Entrance& entrance) const { entrance.enter(options_.rows); }
  std::optional<std::int64_t> meet();
  bool take(std::int64_t round);
  std::int64_t take_from(int member, std::int64_t round);  // the bytes copied

  Rounds rounds_;
  Options options_;
  std::vector<std::int64_t> rows_;     // of each member
  std::vector<std::int64_t> offsets_;  // of each member in the output
  std::byte* output_ = nullptr;
  int next_member_ = 0;  // of this round
};

}  // namespace farandole
