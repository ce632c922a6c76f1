// Staged all-to-all: every member sends some rows to each member. In a round a member shows, to
// each of the others, the next piece of what that one gets. How much everybody sends to everybody
// (the splits) is shown first, in front of the pieces, so that all count the same rounds.
//
// Cost for p members that send n bytes each in equal shares: one wait per round of 256 KiB; moved
// per member (loads and stores) 2(p − 1)/p · n to stage and 2n to collect. The largest share
// decides how many rounds there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "collective/rounds.h"

namespace farandole {

class StagedAlltoall {
 public:
  struct Options {
    const std::byte* input = nullptr;
    std::int64_t rows = 0;       // our first dimension; may differ between members, may be 0
    std::int64_t row_bytes = 0;  // the same for all members; may be 0
    // Rows for each member, from the first on; none below 0, the sum at most `rows`.
    std::vector<std::int64_t> splits = {};
    // Called once, when all have entered: the rows that each member brings us, in rank order →
    // memory for all of them, one after another. Null means that we cannot keep the result: we
    // still take part, so that the others get theirs.
    std::function<std::byte*(std::span<const std::int64_t> rows)> allocate = {};
  };

  // The input is borrowed until the step is over.
  StagedAlltoall(const Group& group, const StepIdentity& identity, Options options);

  // Does a bounded amount of work; see Progress.
  Progress advance() { return rounds_.advance(*this); }

 private:
  std::int64_t split(int from, int to) const;  // rows; after read_splits()
  // How many bytes of `rows` rows are the piece of a round.
  std::int64_t piece_of(std::int64_t rows, std::int64_t round) const;
  // Where the piece for a member is in the staging memory of the others.
  std::int64_t piece_offset(std::int64_t round, int member) const;

  void stage_splits();
  void read_splits();
  bool splits_fit() const;

  template <class Way>
  friend class BasicRounds;  // which calls these four
  void stage(std::int64_t round);
  void enter(Entrance& entrance) const { entrance.enter(options_.rows); }
  std::optional<std::int64_t> meet();
  bool take(std::int64_t round);

  Rounds rounds_;
  Options options_;
  std::int64_t splits_bytes_;               // the splits at the begin of the staging memory
  std::int64_t part_bytes_;                 // what a round has of the rest, and
  std::int64_t piece_bytes_;                // what a member has of that
  std::vector<std::int64_t> send_offsets_;  // of each member in the input
  std::vector<std::int64_t> splits_;        // of all members, one after another
  std::vector<std::int64_t> offsets_;       // of each member in the output
  std::byte* output_ = nullptr;
};

}  // namespace farandole
