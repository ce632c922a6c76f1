// Two-shot allreduce: each member reduces one slice of the tensor over all members, in rank order,
// and then all members get all slices.
//
// If all members can see the memory, the algorithm works in place: each member loads its slice from
// the inputs of all members and stores the result into the outputs of all. Cost for n bytes: 2
// waits; each member moves (loads and stores) 2n bytes, the lower bound (S8 in
// docs/performance.md). If there are two members, their outputs are not their inputs, and the
// tensor has at most 512 KiB, each member reduces the whole tensor for itself. This moves 3n bytes,
// but it avoids writing cache lines that the other member's core holds, which would take longer.
//
// Memory that the others cannot see is staged, in windows that stay in the cache. Each member
// publishes a window in its staging memory. It then fetches the slices of the other members, each
// from the staging memory of the member that reduced it. A member reads its own slice from the
// input and writes it to the output directly. Cost for p members: 2 waits per window; each member
// moves (5p − 2)/p · n bytes, that is 4n for 2 members and 4.5n for 4. This is the lower bound for
// memory that the others cannot see.
//
// In one step, some members may stage their memory and others may not, because a member does not
// stage memory that the others can see. A member that has joined has no input and keeps no result,
// but reduces its slices.
//
// Adasum makes two passes over the windows, or over the whole tensor if it works in place. In the
// first pass, each member computes the dot products of its slices and publishes their sums with its
// last slice. All members add these sums in rank order, so they get the same weights. The second
// pass computes the weighted sum. Cost: twice the waits; each member moves 3n bytes in place, or
// (8p − 4)/p · n bytes if all memory is staged.
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
  // The largest number of members of an Adasum. The dot products of more members do not fit into a
  // part of the staging memory.
  static constexpr std::size_t kAdasumMembersMax = 255;

  // check_reduction() must be ok. The memory is borrowed until the step has ended.
  TwoShotAllreduce(Group& group, const StepIdentity& identity, const AllreduceOptions& options);

  // Does a bounded amount of work; see Progress.
  Progress advance() { return shots_.advance(*this); }
  // Our output, which the others write directly if they can see it.
  std::span<const std::byte> output() const;

 private:
  // A range of elements.
  struct Range {
    std::int64_t begin = 0;
    std::int64_t count = 0;
  };

  // The number of windows in a pass if any member stages its data.
  std::int64_t staged_windows() const { return rounds_for(options_.bytes(), kRoundBytes); }
  Range staged_window(std::int64_t index) const;
  std::int64_t windows() const { return is_one_window_ ? 1 : staged_windows(); }
  Range window(std::int64_t index) const;  // `index` counts the windows of all passes
  int passes() const { return has_dot_product_pass_ ? 2 : 1; }
  // Whether this window belongs to the first of two passes.
  bool is_dot_product_window(std::int64_t index) const {
    return has_dot_product_pass_ && index < windows();
  }
  Range slice(Range window, int member) const;  // what a member reduces, relative to the window
  // Offset of a window in the staging memory of every member. At this offset, a member publishes
  // the data that the others need: its input and, at the position of its own slice, the reduced
  // slice.
  std::int64_t part_offset(std::int64_t index) const;
  // Bytes that a window uses in the staging memory. In an Adasum, the member's dot products follow
  // after the window.
  std::int64_t published_bytes() const {
    return std::min(kRoundBytes, round_up(options_.bytes(), kPartAlignment));
  }
  std::int64_t dot_products_bytes() const;

  template <class EntryBarrierType>
  friend class BasicTwoShots;  // BasicTwoShots calls the next five functions
  void stage(std::int64_t index);
  void enter(EntryBarrier& entry_barrier) const;
  std::optional<std::int64_t> on_all_arrived();
  bool reduce(std::int64_t index);
  void fetch(std::int64_t index);

  std::span<const std::byte> input() const;
  void collect_inputs(std::int64_t offset_in_tensor, std::int64_t offset_in_staging) const;
  void reduce_range(std::int64_t index, Range range);
  bool add_dot_products(std::int64_t index);
  void publish_dot_products(std::int64_t index) const;
  void compute_weights(std::int64_t index) const;

  TwoShots shots_;
  StepScratch* scratch_;  // owned by the group; until this step ends, only this step uses it
  AllreduceOptions options_;
  bool has_dot_product_pass_ = false;  // an Adasum of several members, which has two passes
  bool stages_input_ = false;          // we stage our input, because the others cannot see it
  bool is_one_window_ = false;         // the whole tensor is one window, because nothing is staged
  bool reduces_all_ = false;           // each member reduces the whole tensor for itself
  bool others_fetch_ = true;           // some member fetches slices from our staging memory
  // how many elements of our slice of this window are reduced; in the first pass of an Adasum, how
  // many staged windows are finished
  std::int64_t reduced_ = 0;
};

}  // namespace farandole
