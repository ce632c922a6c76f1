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
// Adasum goes over the windows twice, in place over all of it twice. In the first pass each member
// takes the dot products of its slices, and shows them with the last one; all add them up in rank
// order, and get the same weights. The second pass is the sum with these. Cost: twice the waits;
// moved 3n in place, (8p − 4)/p · n where all is staged.
#pragma once

#include <algorithm>
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
  // The dot products of more do not fit into a part of the staging memory.
  static constexpr std::size_t kAdasumMembersMax = 255;

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

  // How many there are in a pass when something is staged.
  std::int64_t windows_staged() const { return rounds_for(options_.bytes(), kRoundBytes); }
  Range window_staged(std::int64_t index) const;
  std::int64_t windows() const { return is_one_window_ ? 1 : windows_staged(); }
  Range window(std::int64_t index) const;  // of any pass
  int passes() const { return multiplies_ ? 2 : 1; }
  // In the first of two passes.
  bool is_multiplied(std::int64_t index) const { return multiplies_ && index < windows(); }
  Range slice(Range window, int member) const;  // what a member reduces, counted in the window
  // Where a window is in every member's staging memory. There a member shows what the others need
  // of it: its input, but, in the place of its own slice, the reduced slice.
  std::int64_t part_offset(std::int64_t index) const;
  // Behind it, where there are two passes, is room for its dot products.
  std::int64_t shown_bytes() const {
    return std::min(kRoundBytes, round_up(options_.bytes(), kPartAlignment));
  }
  std::int64_t products_bytes() const;

  template <class Way>
  friend class BasicTwoShots;  // which calls these five
  void stage(std::int64_t index);
  void enter(Entrance& entrance) const;
  std::optional<std::int64_t> meet();
  bool reduce(std::int64_t index);
  void fetch(std::int64_t index);

  std::span<const std::byte> input() const;
  std::span<const std::byte> output() const;
  void collect_inputs(std::int64_t in_tensor, std::int64_t in_staging) const;
  void reduce_range(std::int64_t index, Range range);
  bool multiply(std::int64_t index);
  void show_products(std::int64_t index) const;
  void find_weights(std::int64_t index) const;

  TwoShots shots_;
  AllreduceOptions options_;
  bool multiplies_ = false;     // of an Adasum, before the second pass
  bool shows_ = false;          // the others cannot see our input
  bool is_one_window_ = false;  // nothing is staged
  bool reduces_all_ = false;    // each member everything, for itself
  bool somebody_fetches_ = true;
  std::int64_t reduced_ = 0;  // elements of our slice of this window; multiplied: staged windows
};

}  // namespace farandole
