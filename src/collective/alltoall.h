// All-to-all: every member sends some rows to each member. How much everybody sends to everybody
// (the splits) is shown first, inside the flag line, so that all count the same rounds. In a round
// a member shows, to each of the others, the next piece of what that one gets.
//
// Each member decides for itself how it shows its rows; the others see it in its splits and in its
// entry. For p members that send n bytes each in equal shares:
// - few rows lie behind the splits in the flag line: 1 wait, the entry;
// - memory that the others can see is read where it is: 2 waits, one of them for its owner at the
//   end; moved per member (loads and stores) 2n, the lower bound;
// - any other is staged: 1 wait per round of 256 KiB; moved per member (4p − 2)/p · n, that is 3n
//   for 2 members and 3.5n for 4. The largest share decides how many rounds there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "collective/copies.h"
#include "collective/rounds.h"

namespace farandole {

class Alltoall {
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
  Alltoall(const Group& group, const StepIdentity& identity, Options options);

  // Does a bounded amount of work; see Progress.
  Progress advance() { return rounds_.advance(*this); }

 private:
  // What a member sends, from its splits.
  struct Sent {
    std::int64_t to_all = 0;   // bytes
    std::int64_t before = 0;   // bytes for those before us
    std::int64_t largest = 0;  // bytes for one of the others
  };

  // How a member stages what it sends: a part per round, with a piece for each member.
  struct Pieces {
    std::int64_t bytes = 0;
    Parts parts = {};
  };
  // A range of the bytes that a member gets from another one.
  struct Range {
    std::int64_t begin = 0;
    std::int64_t bytes = 0;
  };

  bool are_splits_inside() const;
  std::int64_t staging_bytes() const;       // for the parts; other splits lie behind them
  bool is_inside(std::int64_t sent) const;  // so many bytes lie behind the splits
  Pieces pieces_of(std::int64_t largest) const;
  static Range piece_of(std::int64_t all, const Pieces& pieces, std::int64_t round);

  void stage_splits();
  void stage_pieces(std::int64_t round);
  void read_splits();
  bool splits_fit() const;
  std::int64_t split(int from, int to) const;  // rows; after read_splits()
  Sent sent_by(int member) const;
  Copy copy_of(int member, std::int64_t round) const;

  template <class Way>
  friend class BasicRounds;  // which calls these four
  void stage(std::int64_t round);
  void enter(Entrance& entrance) const;
  std::optional<std::int64_t> meet();
  bool take(std::int64_t round);

  Rounds rounds_;
  Options options_;
  std::int64_t splits_bytes_;
  std::int64_t piece_bytes_max_;
  std::int64_t sent_ = 0;  // bytes that we send, the first of the input
  bool lends_ = false;
  std::byte* output_ = nullptr;
  Copies copies_;
};

}  // namespace farandole
