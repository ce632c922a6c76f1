// Two-shot allreduce: each member reduces its slice over all members, in rank order.
//
// In memory that the others can see it works in place: each member loads its slice from where all
// members have it and stores the sum to where all want it. Cost for n bytes: 2 waits; moved per
// member (loads and stores) 2n, the lower bound (S8 in docs/performance.md).
// Up to 512 KiB, two members whose outputs lie apart from their inputs each reduce everything, for
// themselves: 3n moved, but no line is written that the other holds, which takes longer.
// What the others cannot see is staged, in windows that stay in the cache: each member shows a
// window in its staging memory, and fetches the slices of the others from theirs; its own slice is
// read from the input and written to the output directly, never copied. Cost for p members: 2 waits
// per window; moved per member (5p − 2)/p · n, that is 4n for 2 members and 4.5n for 4, the lower
// bound for such memory (S5). Members may differ: what is visible is not staged.
// A member that has joined brings no input and keeps no result, but reduces its slices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "collective/allreduce.h"
#include "collective/staging.h"
#include "collective/two_shots.h"

namespace farandole {

class TwoShotAllreduce {
 public:
  // check_reduction() must hold. The memory is borrowed until the step is over.
  TwoShotAllreduce(const Group& group, const StepIdentity& identity,
                   const AllreduceOptions& options);

  // Does a bounded amount of work; see Progress.
  Progress advance() { return shots_.advance(*this); }

 private:
  // A range of elements.
  struct Range {
    std::int64_t begin = 0;
    std::int64_t count = 0;
  };

  // How many there are when something is staged.
  std::int64_t windows() const { return rounds_for(options_.bytes(), kRoundBytes); }
  Range window(std::int64_t index) const;
  Range slice(Range window, int member) const;  // what a member reduces, counted in the window
  // Where a window is in every member's staging memory. There a member shows what the others need
  // of it: its input, but, in the place of its own slice, the reduced slice.
  std::int64_t part_offset(std::int64_t index) const;

  template <class Way>
  friend class BasicTwoShots;  // which calls these five
  void stage(std::int64_t index);
  void enter(Entrance& entrance) const;
  std::optional<std::int64_t> meet();
  bool reduce(std::int64_t index);
  void fetch(std::int64_t index);

  std::span<const std::byte> input() const;
  std::span<const std::byte> output() const;
  void reduce_range(std::int64_t index, Range range);

  TwoShots shots_;
  AllreduceOptions options_;
  bool shows_ = false;          // the others cannot see our input
  bool is_one_window_ = false;  // nothing is staged
  bool reduces_all_ = false;    // each member everything, for itself
  bool somebody_fetches_ = true;
  std::int64_t reduced_ = 0;  // elements of our slice of this window
};

}  // namespace farandole
