// All-to-all: every member sends some of its rows to each member. Each member first publishes in
// its flag line how many rows it sends to each member (its splits). From the splits of all members,
// every member computes the same number of rounds. In a round, a member publishes the next piece of
// its rows for each other member.
//
// Each member decides for itself how it publishes its rows. Its splits and its entry tell the
// others which way it has chosen. For p members that send n bytes each, in equal shares:
// - a few rows fit after the splits in the flag line: 1 wait, for the entry;
// - memory that the others can see is read in place: 2 waits (one at the end); each member moves
//   (loads and stores) 2n bytes, which is the lower bound;
// - other memory is staged: 1 wait per round of 256 KiB; each member moves (4p − 2)/p · n bytes,
//   that is 3n for 2 members and 3.5n for 4. The largest share decides how many rounds there are.
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
    // How many rows go to each member: the first rows to member 0, the next to member 1, and so on.
    // The numbers are not negative, and their sum is at most `rows`.
    std::vector<std::int64_t> splits = {};
    // Called once, after all have entered, with the number of rows that each member sends to us, in
    // rank order. Returns memory for all these rows. If it returns null, this member gets no
    // result, but it still takes part so that the others get theirs.
    std::function<std::byte*(std::span<const std::int64_t> rows)> allocate = {};
  };

  // The input is borrowed until the step has ended.
  Alltoall(Group& group, const StepIdentity& identity, Options options);

  // Does a bounded amount of work; see Progress.
  Progress advance() { return rounds_.advance(*this); }

 private:
  // How many bytes a member sends, computed from its splits.
  struct SentBytes {
    std::int64_t total = 0;
    std::int64_t before_us = 0;      // bytes for the members before us
    std::int64_t largest_share = 0;  // the most bytes for one other member
  };

  // The layout of staged data: one part per round, with a piece for each member.
  struct PieceLayout {
    std::int64_t bytes = 0;
    Parts parts = {};
  };
  // A range of the bytes that one member gets from another.
  struct Range {
    std::int64_t begin = 0;
    std::int64_t bytes = 0;
  };

  bool are_splits_inline() const;
  // Size of the staging memory that the parts use. Splits that do not fit into the flag line lie
  // after the parts.
  std::int64_t staging_bytes() const;
  // Whether this many bytes fit into the flag line, after the splits.
  bool is_inline(std::int64_t sent_bytes) const;
  PieceLayout piece_layout_of(std::int64_t largest_share) const;
  static Range piece_of(std::int64_t share_bytes, const PieceLayout& pieces, std::int64_t round);

  void stage_splits();
  void stage_pieces(std::int64_t round);
  void read_splits();
  bool splits_are_valid() const;
  std::int64_t split(int from, int to) const;  // in rows; call it only after read_splits()
  SentBytes sent_bytes_of(int member) const;
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
  std::int64_t splits_bytes_;
  std::int64_t piece_bytes_max_;
  std::int64_t sent_bytes_ = 0;  // bytes that we send in total
  bool exposes_input_ = false;
  std::byte* output_ = nullptr;
  Copies copies_;
};

}  // namespace farandole
