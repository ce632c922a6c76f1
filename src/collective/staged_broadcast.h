// Staged broadcast: the root copies its input window by window into its shared staging memory, the
// others copy it from there. The staging holds four windows, so the root runs ahead of the readers.
//
// Cost for n bytes: one wait per window of 256 KiB; moved (loads and stores) 2n at the root (4n if
// its output is not its input), 2n elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collective/entrance.h"

namespace farandole {

class StagedBroadcast {
 public:
  struct Options {
    int root = 0;                      // a member of the group
    std::int64_t bytes = 0;            // the same on all members
    const std::byte* input = nullptr;  // read on the root only
    std::byte* output = nullptr;       // may equal input; untouched before all have entered
  };

  // The memory is borrowed until the step is over.
  StagedBroadcast(const Group& group, const StepIdentity& identity, const Options& options);

  // Does a bounded amount of work; see Progress.
  Progress advance();

 private:
  enum class State : std::uint8_t { kEnter, kMeet, kMove, kOver };

  bool is_root() const { return entrance_.group().member == options_.root; }
  std::size_t bytes_of(std::int64_t window) const;
  void stage(std::int64_t window);
  bool part_is_free(std::int64_t window) const;  // all have copied what was there before

  Progress enter();
  Progress meet();
  Progress send_window();
  Progress receive_window();
  Progress next_window();
  Progress finish();

  Entrance entrance_;
  Options options_;
  std::int64_t windows_;
  std::int64_t window_ = 0;  // the next one to send or receive
  State state_ = State::kEnter;
};

}  // namespace farandole
