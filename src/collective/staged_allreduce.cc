#include "collective/staged_allreduce.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"

// The phases of a member: 2w = "my copy of window w is staged" (0 is the entry itself), 2w + 1 =
// "my slice of window w is reduced". A member goes, for w = 0, 1, …:
//   wait all ≥ 2w; reduce w; publish 2w + 1; stage w + 1; publish 2w + 2; wait all ≥ 2w + 1; fetch
//   w.
// Window w lives in half w mod 2 of the staging memory. Neither of its parts is overwritten early:
// - stage(w + 1) overwrites the input copy of w − 1, which the others read while they reduce w − 1.
//   We do it after reduce(w), so all were at ≥ 2w, and they publish 2w after having reduced w − 1.
// - reduce(w) overwrites our result of w − 2, which the others read while they fetch w − 2. All
// were
//   at ≥ 2w by then, and they stage w only after reduce(w − 1), which follows fetch(w − 2).
// The next step with this slot is entered only when all are done with this one.
// A member that has joined goes the same way, with nothing to stage and nothing to fetch.
// In place: stage(w + 1) reads the user's memory of window w + 1, which is written first by
// reduce(w + 1); what reduce(w) and fetch(w) write lies in window w, staged before.

namespace farandole {
namespace {

// Slices begin at multiples of a cache line, so that two members never write to the same one.
constexpr std::int64_t kSliceAlignment = 64;

// What is added to the extent of a member that has joined. No tensor has as many bytes.
constexpr std::int64_t kJoined = std::int64_t{1} << 62;

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

StagedAllreduce::StagedAllreduce(const Group& group, const StepIdentity& identity,
                                 const Options& options)
    : entrance_(group, identity),
      options_(options),
      element_bytes_(static_cast<std::int64_t>(row_of(options.reduction.dtype).bytes)),
      bytes_(options.count * element_bytes_),
      window_count_(static_cast<std::int64_t>(kWindowBytes) / element_bytes_),
      windows_(round_up(options.count, window_count_) / window_count_) {}

Progress StagedAllreduce::advance() {
  switch (state_) {
    case State::kEnter:
      return enter();
    case State::kMeet:
      return meet();
    case State::kReduce:
      return reduce_window();
    case State::kFetch:
      return fetch_window();
    case State::kOver:
      break;
  }
  CHECK(false, "a step that is over is not advanced");
  return Progress::kDone;
}

StagedAllreduce::Range StagedAllreduce::window(std::int64_t index) const {
  const std::int64_t begin = index * window_count_;
  return {begin, std::min(window_count_, options_.count - begin)};
}

StagedAllreduce::Range StagedAllreduce::slice(Range window, int member) const {
  const std::int64_t members = entrance_.group().members();
  const std::int64_t full =
      round_up((window.count + members - 1) / members, kSliceAlignment / element_bytes_);
  const std::int64_t begin = std::min(full * member, window.count);
  return {begin, std::min(full, window.count - begin)};
}

std::int64_t StagedAllreduce::input_offset(std::int64_t index) {
  return index % 2 * 2 * static_cast<std::int64_t>(kWindowBytes);
}

std::int64_t StagedAllreduce::result_offset(std::int64_t index) {
  return input_offset(index) + static_cast<std::int64_t>(kWindowBytes);
}

bool StagedAllreduce::has_joined(int member) const { return entrance_.extent(member) >= kJoined; }

// All bring the same number of bytes, or have joined and expect that number; and somebody brings.
bool StagedAllreduce::extents_fit() const {
  bool somebody_brings = false;
  for (int member = 0; member < entrance_.group().members(); ++member) {
    const std::int64_t extent = entrance_.extent(member);
    if (extent != bytes_ && extent != kJoined + bytes_) return false;
    somebody_brings = somebody_brings || extent == bytes_;
  }
  return somebody_brings;
}

// Copies the slices that the other members reduce; our own is read from the input directly.
void StagedAllreduce::stage(std::int64_t index) {
  if (options_.joined) return;
  const Range whole = window(index);
  const Range own = slice(whole, entrance_.group().member);
  std::byte* const to = entrance_.own_staging() + input_offset(index);
  const std::byte* const from = options_.input + whole.begin * element_bytes_;
  const auto copy = [&](std::int64_t begin, std::int64_t end) {
    if (begin < end)
      std::memcpy(to + begin * element_bytes_, from + begin * element_bytes_,
                  static_cast<std::size_t>((end - begin) * element_bytes_));
  };
  copy(0, own.begin);
  copy(own.begin + own.count, whole.count);
}

Progress StagedAllreduce::enter() {
  if (!entrance_.may_enter()) return Progress::kPending;
  if (windows_ > 0) stage(0);
  entrance_.enter(options_.joined ? kJoined + bytes_ : bytes_);
  state_ = State::kMeet;
  return Progress::kMoved;
}

Progress StagedAllreduce::meet() {
  const Progress met = entrance_.meet();
  if (met != Progress::kDone) return met;
  if (!extents_fit()) return Progress::kMismatch;
  if (windows_ == 0) return finish();
  state_ = State::kReduce;
  return Progress::kMoved;
}

Progress StagedAllreduce::reduce_window() {
  const auto phase = static_cast<std::uint32_t>(2 * window_);
  if (!entrance_.board().all_reached(phase)) return Progress::kPending;
  reduce_slice();
  entrance_.board().publish_phase(phase + 1);
  if (window_ + 1 < windows_) {
    stage(window_ + 1);
    entrance_.board().publish_phase(phase + 2);
  }
  state_ = State::kFetch;
  return Progress::kMoved;
}

void StagedAllreduce::reduce_slice() {
  const Group& group = entrance_.group();
  const Range whole = window(window_);
  const Range own = slice(whole, group.member);
  const std::int64_t own_offset = own.begin * element_bytes_;
  const std::int64_t user_offset = whole.begin * element_bytes_ + own_offset;
  inputs_.clear();
  for (int member = 0; member < group.members(); ++member) {
    if (has_joined(member)) continue;
    inputs_.push_back(member == group.member
                          ? options_.input + user_offset
                          : entrance_.staging(member) + input_offset(window_) + own_offset);
  }
  outputs_.clear();
  if (!options_.joined) outputs_.push_back(options_.output + user_offset);
  // Alone there is nobody to fetch the result.
  if (group.members() > 1) outputs_.push_back(entrance_.own_staging() + result_offset(window_));
  reduce(options_.reduction, inputs_, outputs_, own.count);
}

Progress StagedAllreduce::fetch_window() {
  if (!entrance_.board().all_reached(static_cast<std::uint32_t>(2 * window_ + 1)))
    return Progress::kPending;

  const Group& group = entrance_.group();
  const Range whole = window(window_);
  for (int member = 0; !options_.joined && member < group.members(); ++member) {
    const Range part = slice(whole, member);
    if (member == group.member || part.count == 0) continue;
    std::memcpy(options_.output + (whole.begin + part.begin) * element_bytes_,
                entrance_.staging(member) + result_offset(window_),
                static_cast<std::size_t>(part.count * element_bytes_));
  }
  ++window_;
  if (window_ == windows_) return finish();
  state_ = State::kReduce;
  return Progress::kMoved;
}

Progress StagedAllreduce::finish() {
  entrance_.board().finish();
  state_ = State::kOver;
  return Progress::kDone;
}

}  // namespace farandole
