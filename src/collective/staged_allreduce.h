// Staged two-shot allreduce for ordinary memory, in windows that stay in the cache. Each member
// reduces its slice of a window over all members and the others fetch it from there; its own slice
// is read from the input and written to the output directly, never copied.
//
// Cost for p members and n bytes: 2 waits per window of 256 KiB; moved per member (loads and
// stores) (5p − 2)/p · n, that is 4n for 2 members and 4.5n for 4. The lower bound for memory that
// the others cannot see. A member that has joined brings no input and keeps no result, but reduces
// its slices for the others; it moves n at most.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collective/entrance.h"
#include "device/cpu/reduce.h"

namespace farandole {

class StagedAllreduce {
 public:
  struct Options {
    Reduction reduction = {};
    std::int64_t count = 0;  // elements, the same on all members
    const std::byte* input = nullptr;
    std::byte* output = nullptr;  // may equal input; untouched before all members have entered
    // This member has joined: no input, no output. Not on all members.
    bool joined = false;
  };

  // check_reduction() must hold. The memory is borrowed until the step is over.
  StagedAllreduce(const Group& group, const StepIdentity& identity, const Options& options);

  // Does a bounded amount of work; see Progress.
  Progress advance();

 private:
  // What comes next for window_.
  enum class State : std::uint8_t { kEnter, kMeet, kReduce, kFetch, kOver };

  // A range of elements.
  struct Range {
    std::int64_t begin = 0;
    std::int64_t count = 0;
  };

  Range window(std::int64_t index) const;
  Range slice(Range window, int member) const;  // what a member reduces, counted in the window
  // Where a member's copy of a window and its reduced slice of it are in its staging memory.
  static std::int64_t input_offset(std::int64_t index);
  static std::int64_t result_offset(std::int64_t index);

  bool has_joined(int member) const;
  bool extents_fit() const;
  void stage(std::int64_t index);
  void reduce_slice();
  Progress enter();
  Progress meet();
  Progress reduce_window();
  Progress fetch_window();
  Progress finish();

  Entrance entrance_;
  Options options_;
  std::int64_t element_bytes_;
  std::int64_t bytes_;
  std::int64_t window_count_;  // elements in a full window
  std::int64_t windows_;
  std::int64_t window_ = 0;
  State state_ = State::kEnter;
  // Of the slice in work; kept to save the allocations.
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
};

}  // namespace farandole
